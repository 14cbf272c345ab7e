"""The rules of rotation: what is to become of a Secret, at a given time."""

from __future__ import annotations

import datetime

import pytest

from carpool_injector.certificates import pki, rotation

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
NAMES = pki.service_names("carpool-injector", "carpool-system")
DAY = datetime.timedelta(days=1)
Action = rotation.Action


def decide(contents, now=NOW, settled=b"", names=NAMES):
    return rotation.decide(contents, now, names, settled)


def made(now=NOW):
    return dict(decide(None, now).contents)


def why_untrusted(contents, now=NOW):
    return pki.why_untrusted(contents["tls.crt"], contents["ca.crt"], NAMES[0], now)


def changed(before, after):
    return {key for key in rotation.KEYS if before.get(key) != after[key]}


def at_the_latest_leaf(contents, now):
    """The Secret with a fresh leaf at `now`, as after renewals in time."""
    signer = pki.Pair(contents["ca.crt"], contents["ca.key"])
    leaf = pki.issue_leaf(signer, NAMES, now)
    return {**contents, "tls.crt": leaf.certificate, "tls.key": leaf.key}


@pytest.mark.parametrize("contents", [None, {}, {"tls.crt": b"", "ca.crt": b""}, {"note": b"left by the chart"}])
def test_an_absent_or_empty_secret_is_filled(contents):
    decision = decide(contents)
    assert decision.action is Action.CREATE
    assert why_untrusted(decision.contents) is None
    assert decision.contents.get("note") == (contents or {}).get("note")
    assert decide(decision.contents).action is Action.KEEP


def test_what_is_well_is_kept_until_two_thirds_of_the_leaf_s_life_are_over():
    contents, leeway = made(), datetime.timedelta(minutes=10)
    assert decide(contents).action is Action.KEEP
    assert decide(contents, NOW + 20 * DAY - leeway).action is Action.KEEP
    assert decide(contents, NOW + 20 * DAY + leeway).action is Action.NEW_LEAF


def test_the_leaf_is_renewed_after_two_thirds_of_its_life_and_nothing_else_changes():
    before = made()
    assert decide(before, NOW + 19.9 * DAY).action is Action.KEEP
    decision = decide(before, NOW + 20 * DAY)
    assert decision.action is Action.NEW_LEAF
    assert changed(before, decision.contents) == {"tls.crt", "tls.key"}
    assert why_untrusted(decision.contents, NOW + 49 * DAY) is None


def test_a_year_old_ca_gets_a_successor_in_the_bundle_while_the_leaf_stays():
    then = NOW + 365 * DAY
    before = at_the_latest_leaf(made(), then - DAY)
    decision = decide(before, then)
    assert decision.action is Action.NEW_AUTHORITY
    assert changed(before, decision.contents) == {"ca.crt", "ca.key"}
    assert decision.contents["ca.crt"].startswith(before["ca.crt"])
    assert len(pki.read_certificates(decision.contents["ca.crt"])) == 2
    assert why_untrusted(decision.contents, then) is None


def rotated():
    """A Secret one step into a rotation, and when."""
    then = NOW + 365 * DAY
    return dict(decide(at_the_latest_leaf(made(), then - DAY), then).contents), then


def test_the_new_ca_signs_only_once_the_api_servers_have_had_it_for_a_while():
    before, then = rotated()
    assert decide(before, then + DAY).action is Action.KEEP
    assert decide(before, then + 25 * DAY).action is Action.KEEP
    decision = decide(before, then + DAY, settled=before["ca.crt"])
    assert decision.action is Action.NEW_LEAF
    new = pki.read_certificates(before["ca.crt"])[1]
    assert pki.is_signed_by(pki.read_certificates(decision.contents["tls.crt"])[0], new)


def test_a_leaf_that_has_expired_has_nothing_to_lose():
    before, then = rotated()
    decision = decide(before, then + 31 * DAY)
    assert decision.action is Action.NEW_LEAF
    assert why_untrusted(decision.contents, then + 31 * DAY) is None


def test_the_old_ca_leaves_when_all_it_signed_has_expired():
    before, then = rotated()
    before = dict(decide(before, then + DAY, settled=before["ca.crt"]).contents)
    before = dict(decide(before, then + 22 * DAY).contents)
    assert decide(before, then + rotation.RETIRE - datetime.timedelta(seconds=1)).action is Action.KEEP
    decision = decide(before, then + rotation.RETIRE)
    assert decision.action is Action.DROP_AUTHORITY
    assert pki.read_certificates(decision.contents["ca.crt"]) == pki.read_certificates(before["ca.crt"])[1:]
    assert why_untrusted(decision.contents, then + 31 * DAY) is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"ca.key": b""}, "no readable unencrypted private key"),
        ({"ca.key": b"junk"}, "no readable unencrypted private key"),
        ({"ca.key": pki.issue_authority(NOW).key}, "belongs to no certificate"),
        ({"ca.crt": b"junk"}, "no readable certificates"),
        ({"ca.crt": pki.issue_authority(NOW).certificate}, "belongs to no certificate"),
    ],
)
def test_a_secret_whose_ca_cannot_sign_gets_a_new_one(damage, reason):
    decision = decide({**made(), **damage, "note": b"kept"})
    assert decision.action is Action.REPAIR
    assert reason in decision.reason
    assert why_untrusted(decision.contents) is None
    assert decision.contents["note"] == b"kept"
    assert decide(decision.contents).action is Action.KEEP


def test_when_only_the_ca_s_key_is_lost_the_leaf_that_works_stays():
    before = made()
    del before["ca.key"]
    decision = decide(before)
    assert changed(before, decision.contents) == {"ca.crt", "ca.key"}
    assert decision.contents["ca.crt"].startswith(before["ca.crt"])


@pytest.mark.parametrize("damage", [{"tls.crt": b""}, {"tls.key": b"junk"}, {"tls.key": pki.issue_authority(NOW).key}])
def test_a_damaged_leaf_is_replaced_and_the_ca_stays(damage):
    before = {**made(), **damage}
    decision = decide(before)
    assert decision.action is Action.NEW_LEAF
    assert changed(before, decision.contents) <= {"tls.crt", "tls.key"}
    assert why_untrusted(decision.contents) is None


def test_a_leaf_of_a_stranger_is_replaced():
    stranger = made()
    decision = decide({**made(), "tls.crt": stranger["tls.crt"], "tls.key": stranger["tls.key"]})
    assert decision.action is Action.NEW_LEAF
    assert why_untrusted(decision.contents) is None


def test_a_leaf_for_other_names_is_replaced():
    names = pki.service_names("renamed", "carpool-system")
    decision = decide(made(), names=names)
    assert decision.action is Action.NEW_LEAF
    assert "renamed.carpool-system.svc" in decision.reason
    assert pki.names_of(pki.read_certificates(decision.contents["tls.crt"])[0]) == names


def test_a_cluster_that_slept_for_a_year_or_eleven_wakes_up_with_working_certificates():
    slept = decide(made(), NOW + 400 * DAY)
    assert slept.action is Action.NEW_LEAF
    assert decide(slept.contents, NOW + 400 * DAY).action is Action.NEW_AUTHORITY
    long_slept = decide(made(), NOW + 4000 * DAY)
    assert long_slept.action is Action.REPAIR
    assert "valid only from 2026-11-21 to 2036" in long_slept.reason
    assert why_untrusted(long_slept.contents, NOW + 4000 * DAY) is None
    assert len(pki.read_certificates(long_slept.contents["ca.crt"])) == 1


def test_a_replica_whose_clock_is_behind_does_not_undo_what_another_has_made():
    for behind in (datetime.timedelta(minutes=5), datetime.timedelta(minutes=50)):
        assert decide(made(), NOW - behind).action is Action.KEEP


def test_certificates_from_a_clock_that_was_years_ahead_are_replaced():
    decision = decide(made(NOW + 2000 * DAY))
    assert decision.action is Action.REPAIR
    assert why_untrusted(decision.contents) is None


def test_every_round_ends_within_three_steps():
    for days in (0, 21, 31, 365, 366, 400, 4000):
        contents, then = made(), NOW + days * DAY
        for _ in range(4):
            decision = decide(contents, then)
            if decision.action is Action.KEEP:
                break
            contents = decision.contents
        assert decision.action is Action.KEEP
