"""The controller on a loop in virtual time: API down for hours, races, rotation, what readiness is told."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging

import pytest

from carpool_injector.certificates import certificate_controller, pki, rotation, serving_certificate
from tests.injector.certificates import fake_kube

pytestmark = pytest.mark.looptime

BEGIN = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
NAMES = pki.service_names("carpool-injector", "carpool-system")
QUARTER, HOUR, DAY = 900, 3600, 86400  # an hour of several replicas costs thousands of real rounds
WEBHOOKS = (fake_kube.MUTATING, fake_kube.VALIDATING)


def now() -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def running(kube, *, webhooks=WEBHOOKS, clock=now):
    """A replica's controller at work."""
    made = serving_certificate.ServingCertificate(serving_certificate.make_context(), NAMES, clock())
    places = ("carpool-system", "certificates", webhooks)
    task = asyncio.create_task(
        certificate_controller.CertificateController(kube, made, *places, clock=clock, chance=lambda: 0.5).run()
    )
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def kube_since(*, authority_days: float, leaf_days: float) -> fake_kube.FakeKube:
    """An API server whose CA and leaf were made and published so long ago: virtual days cost real rounds."""
    ca = pki.issue_authority(BEGIN - datetime.timedelta(days=authority_days))
    leaf = pki.issue_leaf(ca, NAMES, BEGIN - datetime.timedelta(days=leaf_days))
    kube = fake_kube.FakeKube()
    kube.replace_secret({"ca.crt": ca.certificate, "ca.key": ca.key, "tls.crt": leaf.certificate, "tls.key": leaf.key})
    for webhook in kube.configurations:
        kube.publish(webhook, ca.certificate)
    return kube


def is_trusted(made, kube) -> bool:
    why = [pki.why_untrusted(made._pair.certificate, bundle, NAMES[0], now()) for bundle in kube.bundles()]
    return why == [None] * len(why)


async def test_one_round_makes_publishes_and_serves_the_certificate():
    kube = fake_kube.FakeKube()
    async with running(kube) as made:
        assert made.unverified is not None
        assert made.not_after is None
        await asyncio.sleep(1)
        assert is_trusted(made, kube)
        assert made.unverified is None
        assert made.last_error is None
        assert made.not_after == BEGIN + datetime.timedelta(days=30)
        assert len(kube.bundles()) == 4


async def test_a_quiet_round_costs_three_reads_and_no_write():
    kube = fake_kube.FakeKube()
    async with running(kube):
        await asyncio.sleep(60)
        kube.calls.clear()
        await asyncio.sleep(certificate_controller.POLL_SECONDS)
        assert kube.calls == ["get webhooks", "get webhooks", "get secrets"]


async def test_configurations_that_come_late_are_trusted_within_seconds():
    kube = fake_kube.FakeKube()
    late, kube.configurations = kube.configurations, {}
    async with running(kube) as made:
        await asyncio.sleep(300)
        assert "not found: MutatingWebhookConfiguration" in made.last_error
        assert made.unverified == "no CA of it is in all webhook configurations yet"
        kube.configurations = late
        await asyncio.sleep(certificate_controller.MISSING_SECONDS + 1)
        assert made.unverified is None


async def test_three_replicas_started_together_agree_at_once_and_then_leave_each_other_in_peace():
    kube = fake_kube.FakeKube()
    async with running(kube) as one, running(kube) as two, running(kube) as three:
        await asyncio.sleep(5)
        assert one._pair == two._pair == three._pair
        assert all(made.unverified is None for made in (one, two, three))
        assert kube.writes == 1
        kube.calls.clear()
        await asyncio.sleep(QUARTER)
        assert not any(call.startswith(("patch", "create")) for call in kube.calls)


async def test_two_replicas_renew_the_leaf_together_with_one_write():
    kube = kube_since(authority_days=30, leaf_days=19.995)
    async with running(kube) as one, running(kube) as two:
        await asyncio.sleep(2 * QUARTER)
        assert kube.writes == 1
        assert one._pair == two._pair
        assert (one.reloads, two.reloads) == (2, 2)
        assert one.not_after > BEGIN + datetime.timedelta(days=30)


async def test_an_api_server_away_at_the_start_leaves_a_stand_in_that_readiness_does_not_trust(caplog):
    kube = fake_kube.FakeKube()
    kube.is_down = True
    async with running(kube) as made:
        await asyncio.sleep(3 * HOUR)
        assert made.unverified is not None
        assert made.unverified == "there is no certificate yet"
        assert "no answer" in made.last_error
        assert 150 < len(kube.calls) < 250  # at most one a minute, in the long run
        kube.is_down = False
        await asyncio.sleep(61)
        assert made.unverified is None
        assert made.last_error is None
    assert "the next try follows" in caplog.text


async def test_the_certificate_in_hand_is_served_through_an_outage_until_it_expires():
    kube = kube_since(authority_days=30, leaf_days=19.9)
    async with running(kube, clock=lambda: BEGIN + 100 * (now() - BEGIN)) as made:
        await asyncio.sleep(5)
        pair = made._pair
        kube.is_down = True
        await asyncio.sleep(9 * DAY / 100)
        assert made._pair == pair
        assert made.unverified is None
        assert "no answer" in made.last_error
        await asyncio.sleep(2 * DAY / 100)
        assert "not valid" in made.unverified
        kube.is_down = False
        await asyncio.sleep(61)
        assert made.unverified is None


async def test_a_ca_bundle_that_somebody_wipes_is_back_within_a_minute():
    kube = fake_kube.FakeKube()
    async with running(kube) as made:
        await asyncio.sleep(5)
        kube.publish(fake_kube.MUTATING, b"")
        await asyncio.sleep(61)
        assert is_trusted(made, kube)
        assert made.unverified is None


async def test_a_deleted_secret_is_made_anew_and_nobody_notices():
    kube = fake_kube.FakeKube()
    async with running(kube) as one, running(kube) as two:
        await asyncio.sleep(5)
        old = one._pair
        kube.replace_secret(None)
        seconds_with_the_old = 0
        for _ in range(8 * 60):
            await asyncio.sleep(1)
            seconds_with_the_old += one._pair == two._pair == old
            assert is_trusted(one, kube)
            assert is_trusted(two, kube)
        assert seconds_with_the_old >= rotation.SETTLE.total_seconds()
        assert one._pair == two._pair != old
        assert kube.writes == 2


async def test_the_yearly_rotation_of_the_ca_leaves_no_moment_in_which_a_client_would_refuse():
    kube = kube_since(authority_days=364.999, leaf_days=5)
    async with running(kube) as one, running(kube) as two:
        await asyncio.sleep(5)
        first = pki.read_certificates(kube.secret.data[rotation.BUNDLE])
        for _ in range(12 * 60):
            await asyncio.sleep(1)
            assert is_trusted(one, kube)
            assert is_trusted(two, kube)
        both = pki.read_certificates(kube.secret.data[rotation.BUNDLE])
        assert (both[:1], len(both)) == (first, 2)
        assert pki.is_signed_by(one._pair.first, both[1])
        assert one._pair == two._pair


async def test_the_same_trouble_is_told_once_and_another_anew(caplog):
    kube = fake_kube.FakeKube()
    kube.is_down = True
    async with running(kube):
        await asyncio.sleep(HOUR)
        assert caplog.text.count("the next try follows") == 1
        kube.is_down, kube.forbidden = False, {"create secrets"}
        await asyncio.sleep(HOUR)
        assert caplog.text.count("the next try follows") == 2


async def test_configurations_that_were_waited_for_are_tried_again_at_once_where_a_write_was_lost():
    kube = fake_kube.FakeKube()
    late, kube.configurations = kube.configurations, {}
    async with running(kube) as one, running(kube) as two, running(kube) as three:
        await asyncio.sleep(QUARTER)
        kube.configurations = late
        await asyncio.sleep(certificate_controller.MISSING_SECONDS + 1)
        assert [made.unverified for made in (one, two, three)] == [None] * 3


async def test_without_the_right_to_publish_nothing_unknown_is_served_and_the_reason_is_told():
    kube = fake_kube.FakeKube()
    kube.forbidden = {"patch webhooks"}
    async with running(kube) as made:
        await asyncio.sleep(60)
        assert made.unverified is not None
        assert made.last_error == "patch webhooks: forbidden"
        kube.forbidden = set()
        await asyncio.sleep(61)
        assert made.unverified is None


async def test_missing_configurations_are_named_and_not_waited_for():
    kube = fake_kube.FakeKube(webhooks=[fake_kube.MUTATING])
    async with running(kube) as made:
        await asyncio.sleep(5)
        assert made.unverified is None
        assert "not found: ValidatingWebhookConfiguration carpool-injector" in made.last_error


async def test_without_any_configuration_to_publish_in_the_secret_s_own_bundle_is_the_measure():
    kube = fake_kube.FakeKube(webhooks=[])
    async with running(kube, webhooks=()) as made:
        await asyncio.sleep(HOUR)
        assert made.unverified is None
        assert made.last_error is None


async def test_a_bug_is_logged_and_does_not_end_the_keeping(caplog):
    class Broken(fake_kube.FakeKube):
        async def read_secret(self, namespace, name):
            raise KeyError("metadata")

    async with running(Broken()) as made:
        await asyncio.sleep(HOUR)
        assert made.last_error == "KeyError('metadata')"
    assert "because of a bug" in caplog.text


async def test_what_is_written_is_logged_without_the_keys(caplog):
    caplog.set_level(logging.DEBUG)
    kube = fake_kube.FakeKube()
    async with running(kube):
        await asyncio.sleep(5)
    assert "Secret carpool-system/certificates: create (there are no certificates yet)" in caplog.text
    assert "PRIVATE KEY" not in caplog.text
