"""Which caBundle the webhook configurations are to have, given what they have."""

from __future__ import annotations

import base64
import datetime

import pytest

from carpool_injector.api import calls
from carpool_injector.certificates import certificate_controller, pki, rotation, serving_certificate
from tests.injector.certificates import fake_kube

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
OLD = pki.issue_authority(NOW - 10 * DAY).certificate
NEW = pki.issue_authority(NOW).certificate


def configuration(*bundles):
    """One entry for each bundle; None: an entry without a caBundle."""
    encoded = [{} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()} for bundle in bundles]
    return {"webhooks": [{"name": f"w{i}", "clientConfig": client} for i, client in enumerate(encoded)]}


def certificates(bundle):
    return set(pki.read_certificates(bundle))


def test_entries_without_a_bundle_or_with_junk_get_one():
    assert rotation.with_bundle(configuration(None, None), NEW, NOW) == NEW
    assert rotation.with_bundle(configuration(NEW, b"junk"), NEW, NOW) == NEW


def test_entries_that_have_the_bundle_are_left_alone_however_it_is_laid_out():
    assert rotation.with_bundle(configuration(NEW, b"# ours\n" + NEW), NEW, NOW) is None
    assert rotation.with_bundle(configuration(OLD + NEW), NEW + OLD, NOW) is None
    assert rotation.with_bundle(configuration(), NEW, NOW) is None


def test_a_ca_that_others_may_still_serve_by_stays_until_all_it_signed_has_expired():
    live = configuration(OLD)
    assert certificates(rotation.with_bundle(live, NEW, NOW)) == certificates(OLD + NEW)
    assert rotation.with_bundle(live, NEW, NOW + rotation.RETIRE) == NEW


def test_who_knows_less_takes_nothing_away():
    assert rotation.with_bundle(configuration(OLD + NEW), OLD, NOW) is None
    assert certificates(rotation.with_bundle(configuration(NEW), OLD, NOW + 100 * DAY)) == certificates(OLD + NEW)


def test_expired_cas_go():
    assert rotation.with_bundle(configuration(OLD + NEW), NEW, NOW + 3645 * DAY) == NEW


def test_a_bundle_does_not_grow_without_end():
    many = [pki.issue_authority(NOW - i * DAY / 24).certificate for i in range(1, 15)]
    bundle = rotation.with_bundle(configuration(b"".join(many)), NEW, NOW)
    assert certificates(bundle) == certificates(b"".join([NEW, *many[:9]]))


def test_what_the_secret_names_is_published_however_many_newer_ones_others_have_published():
    many = b"".join(pki.issue_authority(NOW + i * DAY / 24).certificate for i in range(1, 15))
    bundle = rotation.with_bundle(configuration(many), OLD, NOW + DAY)
    assert certificates(OLD) < certificates(bundle)
    assert len(certificates(bundle)) == 10


def test_trusted_is_what_every_entry_of_every_configuration_has():
    assert rotation.trusted_by_all([]) == b""
    assert rotation.trusted_by_all([configuration(OLD + NEW), configuration(NEW, NEW)]) == NEW
    assert rotation.trusted_by_all([configuration(OLD + NEW), configuration(None)]) == b""


def test_a_ca_has_settled_once_it_was_seen_for_a_while_without_a_gap():
    sightings = rotation.Sightings()
    assert sightings.settled(OLD, NOW) == b""
    assert sightings.settled(OLD + NEW, NOW + rotation.SETTLE) == OLD
    assert sightings.settled(NEW, NOW + 1.5 * rotation.SETTLE) == b""
    assert sightings.settled(OLD + NEW, NOW + 2 * rotation.SETTLE) == NEW
    assert sightings.settled(b"", NOW + 9 * rotation.SETTLE) == b""


async def test_a_configuration_that_changed_after_it_was_read_is_not_written_and_the_others_are():
    class ChangedMeanwhile(fake_kube.FakeKube):
        async def read_secret(self, namespace, name):  # the configurations were read before
            if self.secret is None:
                self.publish(fake_kube.MUTATING, OLD)
            return await super().read_secret(namespace, name)

    kube, names = ChangedMeanwhile(), pki.service_names("carpool-injector", "carpool-system")
    served = serving_certificate.ServingCertificate(serving_certificate.make_context(), names, NOW)
    subject = certificate_controller.CertificateController(
        kube, served, "carpool-system", "certificates", [fake_kube.MUTATING, fake_kube.VALIDATING], clock=lambda: NOW
    )
    with pytest.raises(calls.Conflict):
        await subject.step()
    new = kube.secret.data[rotation.BUNDLE]
    assert set(kube.bundles()[:2]) == {OLD}
    assert set(kube.bundles()[2:]) == {new}
    assert served.unverified == "no CA of it is in all webhook configurations yet"
    await subject.step()
    assert {frozenset(certificates(bundle)) for bundle in kube.bundles()[:2]} == {frozenset(certificates(OLD + new))}
    assert served.unverified is None
