"""Which requests to the admin port were made by another site's page."""

from __future__ import annotations

import pytest

from carpool_sidecar.server import admin_access

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:9082", "10.1.2.3:9082", "[::1]:9082", "[fe80::1]", "localhost:9082", "LOCALHOST", "app.localhost:1",
     "carpool-admin:9082", "admin.team.svc:9082", "admin.team.svc.cluster.local", "mac.local:80", "x.internal",
     "admin.team.svc.cluster.local.:9082"],
)  # fmt: skip
def test_addresses_and_names_that_nobody_can_register_may_be_read_from(host):
    assert admin_access.objection_to_reading({"Host": host}) is None


@pytest.mark.parametrize(
    "host", ["evil.example:9082", "127.0.0.1.nip.io", "a.svc.evil.example", "", "x.local.com:80", "evil.example."]
)
def test_a_name_that_an_attacker_may_own_is_refused(host):
    assert "could be anybody's name" in admin_access.objection_to_reading({"Host": host})


def test_a_program_that_is_no_browser_may_write_by_any_name_and_content_type():
    headers = {"Host": "admin.example.com", "Content-Type": "application/x-www-form-urlencoded"}
    assert admin_access.objection_to_writing(headers) is None


@pytest.mark.parametrize("host", ["localhost:9082", "127.0.0.1:9082", "[::1]:9082"])
def test_the_page_itself_may_write(host):
    assert admin_access.objection_to_writing({"Host": host, "Origin": f"http://{host}", **JSON}) is None


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Origin": "http://evil.example"}, "a page of another site ('http://evil.example')"),
        ({"Origin": "http://localhost:3000"}, "a page of another site"),
        ({"Origin": "null"}, "a page of another site"),
        ({"Sec-Fetch-Site": "cross-site"}, "a page of another site"),
        ({"Origin": "http://localhost:9082", "Content-Type": "text/plain"}, "has to send application/json"),
        ({"Origin": "http://evil.example:9082", "Host": "evil.example:9082"}, "could be anybody's name"),
    ],
)
def test_a_page_of_another_site_may_not_write_whatever_name_it_has_for_this_address(headers, words):
    assert words in admin_access.objection_to_writing({"Host": "localhost:9082", **JSON, **headers})


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_may_not_take_a_viewers_place(site):
    headers = {"Host": "localhost:9082", "Sec-Fetch-Site": site}
    assert "a page of another site" in admin_access.objection_to_reading(headers)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_itself_may_read(site):
    assert admin_access.objection_to_reading({"Host": "localhost:9082", "Sec-Fetch-Site": site}) is None


def test_a_program_that_names_no_host_is_no_browser_and_may_read():
    assert admin_access.objection_to_reading({}) is None


def test_a_link_on_another_site_may_be_followed_but_neither_framed_nor_fetched():
    link = {"Host": "localhost:9082", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert admin_access.objection_to_reading({**link, "Sec-Fetch-Dest": "document"}) is None
    assert "another site" in admin_access.objection_to_reading({**link, "Sec-Fetch-Dest": "iframe"})
    assert "another site" in admin_access.objection_to_reading({**link, "Sec-Fetch-Mode": "cors"})
    assert "could be anybody's name" in admin_access.objection_to_reading(
        {**link, "Sec-Fetch-Dest": "document", "Host": "evil.example"}
    )
