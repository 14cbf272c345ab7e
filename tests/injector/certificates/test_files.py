"""Certificates mounted as files: what the kubelet and cert-manager do to them, seen from the server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os

import pytest

from carpool_injector.certificates import files, pki, serving_certificate

pytestmark = pytest.mark.looptime

BEGIN = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
NAMES = pki.service_names("carpool-injector", "carpool-system")
CA = pki.issue_authority(BEGIN)


def now() -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=asyncio.get_running_loop().time())


def leaf(ca=CA):
    return pki.issue_leaf(ca, NAMES, BEGIN)


def mount(directory, pair, bundle=CA.certificate, version="one"):
    """As the kubelet does: a new folder, then a symbolic link that swaps, under links that stay."""
    folder = directory / f"..{version}"
    folder.mkdir(parents=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    if bundle is not None:
        (folder / "ca.crt").write_bytes(bundle)
    (directory / "..data_tmp").symlink_to(folder.name)
    os.replace(directory / "..data_tmp", directory / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


@contextlib.asynccontextmanager
async def running(directory, clock=now):
    made = serving_certificate.ServingCertificate(serving_certificate.make_context(), NAMES, now())
    task = asyncio.create_task(files.CertificateFiles(directory, made, clock=clock).run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_mounted_pair_is_served_and_a_swapped_one_within_seconds(tmp_path):
    one, two = leaf(), leaf()
    mount(tmp_path, one)
    async with running(tmp_path) as made:
        await asyncio.sleep(0.1)
        assert made._pair == one
        assert made.unverified is None
        mount(tmp_path, two, version="two")
        await asyncio.sleep(files.POLL_SECONDS)
        assert made._pair == two
        assert made.reloads == 2


async def test_a_key_that_does_not_match_leaves_the_old_pair_in_service_and_is_told_once(tmp_path, caplog):
    one, two = leaf(), leaf()
    mount(tmp_path, one)
    async with running(tmp_path) as made:
        await asyncio.sleep(0.1)
        mount(tmp_path, pki.Pair(two.certificate, one.key), version="torn")
        await asyncio.sleep(600)
        assert made._pair == one
        assert made.unverified is None
        assert "the private key belongs to another certificate" in made.last_error
        assert caplog.text.count("the certificate in service stays") == 1
        mount(tmp_path, two, version="two")
        await asyncio.sleep(files.POLL_SECONDS)
        assert made._pair == two
        assert made.last_error is None


async def test_files_that_come_late_are_waited_for(tmp_path):
    async with running(tmp_path / "tls") as made:
        await asyncio.sleep(30)
        assert made.unverified is not None
        assert "tls.crt" in made.last_error
        mount(tmp_path / "tls", leaf())
        await asyncio.sleep(files.POLL_SECONDS)
        assert made.unverified is None


@pytest.mark.parametrize("bundle", [None, b"", b"\n"])
async def test_without_a_ca_the_dates_are_all_there_is_to_verify(tmp_path, bundle):
    mount(tmp_path, leaf(), bundle)
    async with running(tmp_path) as made:
        await asyncio.sleep(0.1)
        assert made.unverified is None
        made.look(BEGIN + datetime.timedelta(days=31))
        assert "valid from 2026-11-21 11:50 to 2026-12-21 12:00 UTC" in made.unverified


async def test_a_ca_that_has_not_signed_the_pair_is_told_to_readiness(tmp_path):
    mount(tmp_path, leaf(), pki.issue_authority(BEGIN).certificate)
    async with running(tmp_path) as made:
        await asyncio.sleep(0.1)
        assert "refuses the certificate" in made.unverified


async def test_a_pair_that_openssl_does_not_take_is_told_and_changes_nothing(tmp_path):
    one = leaf()
    mount(tmp_path, one)
    async with running(tmp_path) as made:
        await asyncio.sleep(0.1)
        mount(tmp_path, pki.Pair(b"junk", one.key), version="junk")
        await asyncio.sleep(files.POLL_SECONDS)
        assert "no readable certificates" in made.last_error
        assert made._pair == one


async def test_a_bug_is_logged_and_does_not_end_the_keeping(tmp_path, caplog):
    def broken():
        if "bug" not in caplog.text:
            raise KeyError("metadata")
        return now()

    mount(tmp_path, leaf())
    async with running(tmp_path, broken) as made:
        await asyncio.sleep(0.1)
        assert made.last_error == "KeyError('metadata')"
        assert made.unverified is not None
        await asyncio.sleep(files.POLL_SECONDS)
        assert made.unverified is None
    assert "because of a bug" in caplog.text
