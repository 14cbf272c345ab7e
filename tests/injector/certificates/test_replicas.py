"""Several replicas, any order of their steps, any pause in the middle: what is served is always what is trusted.

The controller's own coroutines are driven by hand, one API call (and then its answer) at a time, with no event loop.
"""

from __future__ import annotations

import datetime
import functools

import hypothesis
from hypothesis import strategies as st

from carpool_injector.api import calls
from carpool_injector.certificates import certificate_controller, pki, rotation, serving_certificate
from tests import examples
from tests.injector.certificates import fake_kube

BEGIN = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
NAMES = pki.service_names("carpool-injector", "carpool-system")
PLACES = ("carpool-system", "certificates", (fake_kube.MUTATING, fake_kube.VALIDATING))
# Two rounds of a replica must fit into a certificate's last third (10 days): one to see, one to take what has settled.
LONGEST_PAUSE = datetime.timedelta(days=3)
MINUTE, DAY = datetime.timedelta(minutes=1), datetime.timedelta(days=1)


@functools.lru_cache(maxsize=64)
def why_untrusted(certificate, bundle, now):
    return pki.why_untrusted(certificate, bundle, NAMES[0], now)


class Replica:
    def __init__(self, kube, clock):
        self.served = serving_certificate.ServingCertificate(serving_certificate.make_context(), NAMES, clock())
        self.controller = certificate_controller.CertificateController(kube, self.served, *PLACES, clock=clock)
        self.clock = clock
        self.last_round = clock()
        self.began = clock()
        self.step = None
        self.was_ready = False

    def go_on(self) -> bool:
        """One call further; True at the end of a round."""
        if self.step is None:
            self.began = self.clock()
            self.step = self.controller.step()
        try:
            self.step.send(None)
        except StopIteration:
            self.last_round = self.began
        except calls.Failure:
            pass
        else:
            return False
        self.step = None
        return True

    def close(self):
        if self.step is not None:
            self.step.close()


class Cluster:
    """The replicas, the API server and the time; checks the promise after every move."""

    def __init__(self, replicas: int):
        self.now = BEGIN
        self.kube = fake_kube.FakeKube()
        self.checked = None
        self.replicas = [Replica(self.kube, lambda: self.now) for _ in range(replicas)]

    def move(self, replica: Replica) -> bool:
        ended = replica.go_on()
        self.check()
        return ended

    def round(self, replica: Replica) -> None:
        """To the end of a round that works."""
        self.kube.is_down = False
        before = replica.last_round
        for _ in range(300):
            self.move(replica)
            if replica.step is None and (replica.last_round > before or before == self.now):
                return
        raise AssertionError("a replica never gets to the end of a round")

    def wait(self, span: datetime.timedelta) -> None:
        for replica in self.replicas:
            if self.now + span - replica.last_round > LONGEST_PAUSE:
                self.round(replica)
        self.now += span
        self.check()

    def restart(self, index: int) -> None:
        self.replicas[index].close()
        self.replicas[index] = Replica(self.kube, lambda: self.now)

    def check(self) -> None:
        pairs = [replica.served._pair for replica in self.replicas]
        seen = (self.now, self.kube.version, pairs)
        if seen == self.checked:
            return
        self.checked = seen
        bundles = set(self.kube.bundles())
        for replica, pair in zip(self.replicas, pairs, strict=True):
            # Until it is ready for the first time, a replica gets no calls.
            replica.was_ready = replica.was_ready or replica.served.unverified is None
            if replica.was_ready:
                assert not any(why_untrusted(pair.certificate, bundle, self.now) for bundle in bundles)

    def settle(self) -> None:
        """Time enough for all replicas to do all there is to do at this time of the year."""
        for _ in range(20):
            for replica in self.replicas:
                self.round(replica)
            self.wait(MINUTE)

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()


moves = st.one_of(
    st.tuples(st.just("go on"), st.integers(0, 2), st.integers(1, 12)),
    st.tuples(st.just("round"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 60, 1440, 3 * 1440]), st.integers(1, 8)),
    st.tuples(st.just("restart"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("lose the Secret"), st.sampled_from(["all", "ca.key", "tls.key", "ca.crt"]), st.just(0)),
    st.tuples(st.just("outage"), st.booleans(), st.just(0)),
)


def play(cluster: Cluster, move) -> None:
    match move:
        case ("go on", which, times):
            for _ in range(times):
                cluster.move(cluster.replicas[which % len(cluster.replicas)])
        case ("round", which, _):
            cluster.round(cluster.replicas[which % len(cluster.replicas)])
        case ("wait", minutes, times):
            for _ in range(times):
                cluster.wait(minutes * MINUTE)
        case ("restart", which, _):
            cluster.restart(which % len(cluster.replicas))
        case ("lose the Secret", what, _):
            kept = cluster.kube.secret.data if cluster.kube.secret and what != "all" else {}
            cluster.kube.replace_secret({key: value for key, value in kept.items() if key != what} or None)
        case ("outage", begins, _):
            cluster.kube.is_down = begins


@examples.examples(40)
@hypothesis.given(st.integers(2, 3), st.lists(moves, max_size=20))
def test_whatever_the_order_what_is_served_is_trusted_and_all_replicas_end_with_the_same(replicas, played):
    cluster = Cluster(replicas)
    try:
        for move in played:
            play(cluster, move)
        cluster.settle()
        contents = cluster.kube.secret.data
        pair = pki.Pair(contents[rotation.LEAF], contents[rotation.LEAF_KEY])
        assert all(replica.served._pair == pair for replica in cluster.replicas)
        assert all(replica.served.unverified is None for replica in cluster.replicas)
        writes = cluster.kube.writes
        cluster.settle()
        assert cluster.kube.writes == writes
    finally:
        cluster.close()


def test_a_year_of_rotation_ends_with_one_ca_and_never_breaks_the_promise():
    cluster = Cluster(3)
    cluster.settle()
    first = cluster.kube.secret.data[rotation.BUNDLE]
    for day in range(365):
        cluster.wait(DAY)
        cluster.round(cluster.replicas[day % 3])
    cluster.settle()
    both = pki.read_certificates(cluster.kube.secret.data[rotation.BUNDLE])
    assert len(both) == 2
    assert pki.read_certificates(first)[0] in both
    for _ in range(32):
        cluster.wait(DAY)
    cluster.settle()
    assert pki.read_certificates(cluster.kube.secret.data[rotation.BUNDLE]) == both[1:]
    assert {len(pki.read_certificates(bundle)) for bundle in cluster.kube.bundles()} == {1}


def test_a_new_ca_is_published_before_any_leaf_of_it_exists_and_for_a_while():
    cluster = Cluster(2)
    cluster.settle()
    leaf = cluster.kube.secret.data[rotation.LEAF]
    for _ in range(121):
        cluster.wait(3 * DAY)
        for replica in cluster.replicas:
            cluster.round(replica)
    while len(pki.read_certificates(cluster.kube.secret.data[rotation.BUNDLE])) == 1:
        leaf = cluster.kube.secret.data[rotation.LEAF]
        cluster.wait(60 * MINUTE)
        cluster.round(cluster.replicas[0])
    published = cluster.now
    while cluster.kube.secret.data[rotation.LEAF] == leaf:
        assert all(len(pki.read_certificates(bundle)) == 2 for bundle in cluster.kube.bundles())
        cluster.wait(MINUTE)
        cluster.round(cluster.replicas[1])
    assert rotation.SETTLE <= cluster.now - published <= rotation.SETTLE + 3 * MINUTE
