"""`holdfast doctor`: every judgement from facts, and the facts from real servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import hiredis
import pytest
import redis

from holdfast import embedded, errors
from holdfast._engine.pack import pack_command
from holdfast.cli.doctor import Finding, _here, examine, examine_all
from holdfast.cli.services import recognize
from holdfast.cli.survey import Facts, Survey, survey
from testbed.topologies import NEVER_DOWN_MS, Cluster, Quorum, WithSentinel
from tests.support.commands import holdfast, wait_for
from tests.support.standin import StandIn, pump

HEALTHY: dict[str, Any] = {
    "role": "master",
    "redis_mode": "standalone",
    "redis_version": "7.4.1",
    "maxmemory": 0,
    "used_memory": 1_000_000,
    "maxmemory_policy": "noeviction",
    "connected_slaves": 2,
    "aof_enabled": 1,
    "rdb_last_bgsave_status": "ok",
    "aof_last_write_status": "ok",
    "maxclients": 10_000,
    "connected_clients": 10,
}
CONFIG = {"save": "", "appendfsync": "everysec", "min-replicas-to-write": "1", "timeout": "0"}


KVROCKS = {"kvrocks_version": "2.9.0", "version": "2.9.0"}
MEMORYDB = "clustercfg.shop.abc123.memorydb.us-east-1.amazonaws.com"
SERVERLESS = "shop-abc123.serverless.use1.cache.amazonaws.com"


def facts(
    info: dict[str, Any] | None = None, config: dict[str, str] | None = None, at: str = "h:1", **more: Any
) -> Facts:
    more = {"round_trips_ms": [0.2] * 9, "clocks_apart_s": 0.01, **more}
    return Facts(at, "holdfast", {**HEALTHY, **(info or {})}, {**CONFIG, **(config or {})}, **more)


def of(check: str, given: Facts) -> list[Finding]:
    return [finding for finding in examine(given) if finding.check == check]


def test_a_healthy_server_has_only_what_no_server_is_without() -> None:
    assert [(f.check, f.weight) for f in examine(facts()) if f.weight != "ok"] == [
        ("failover", "warning"),
        ("replicas", "note"),  # the lag
        ("persistence", "note"),  # the last second
    ]


JUDGEMENTS = {
    "a replica": ("role", "fatal", facts({"role": "slave", "master_host": "m", "master_port": 6379})),
    "a Sentinel": ("role", "fatal", facts({"redis_mode": "sentinel"})),
    "a proxy that knows no SUBSCRIBE": ("role", "fatal", facts(hangs_up=True)),
    "Redis too old": ("version", "fatal", facts({"redis_version": "6.0.16"})),
    "Redis just new enough": ("version", "ok", facts({"redis_version": "6.2.0"})),
    "Valkey": ("version", "ok", facts({"redis_version": "7.2.4", "valkey_version": "9.1.0"})),
    "evicts under pressure": ("memory", "danger", facts({"maxmemory": 10**9, "maxmemory_policy": "volatile-lru"})),
    "would evict": ("memory", "warning", facts({"maxmemory_policy": "allkeys-lru"})),
    "memory is short": ("memory", "warning", facts({"maxmemory": 1_050_000})),
    "writes while cut off": ("replicas", "danger", facts(config={"min-replicas-to-write": "0"})),
    "too few replicas": ("replicas", "fatal", facts(config={"min-replicas-to-write": "3"})),
    "alone": ("replicas", "note", facts({"connected_slaves": 0}, {"min-replicas-to-write": "0"})),
    "snapshots only": ("persistence", "warning", facts({"aof_enabled": 0}, {"save": "3600 1"})),
    "no fsync": ("persistence", "warning", facts(config={"appendfsync": "no"})),
    "fsync always": ("persistence", "ok", facts(config={"appendfsync": "always"})),
    "fsync everysec": ("persistence", "note", facts()),
    "stops some time after it was cut off": ("replicas", "note", facts(config={"min-replicas-max-lag": "10"})),
    "never looks at the lag": ("replicas", "danger", facts(config={"min-replicas-max-lag": "0"})),
    "votes at once, and forgets nothing": (
        "persistence",
        "ok",
        facts({"connected_slaves": 0}, {"appendfsync": "always"}, kind="quorum", restart_delay_s=0.0),
    ),
    "a full disk": ("persistence", "warning", facts({"rdb_last_bgsave_status": "err"})),
    "clocks apart": ("clock", "note", facts(clocks_apart_s=-7.0)),
    "far away": ("latency", "warning", facts(round_trips_ms=[150.0] * 9)),
    "crowded": ("clients", "warning", facts({"connected_clients": 9_900})),
    "impatient": ("clients", "note", facts(config={"timeout": "60"})),
    "a restart forgets votes": ("persistence", "note", facts({"aof_enabled": 0}, kind="quorum")),
    "a member with replicas": ("replicas", "danger", facts(kind="quorum")),
    "an active replica of KeyDB": ("role", "fatal", facts({"role": "active-replica"})),
    "KeyDB, to be an active replica": ("role", "fatal", facts(config={"active-replica": "yes"})),
    "KeyDB with several masters": ("role", "fatal", facts(config={"multi-master": "yes"})),
    "KeyDB with one master": (
        "version",
        "ok",
        facts({"redis_version": "6.3.4", "mvcc_depth": 0}, {"multi-master": "no"}),
    ),
    "another server with an old redis_version": ("version", "ok", facts({"redis_version": "4.0.0", **KVROCKS})),
    "a log in several zones": ("failover", "ok", facts({"aof_enabled": 0}, at=f"{MEMORYDB}:6379")),
    "evicts whatever INFO says": ("memory", "danger", facts({"maxmemory_policy": None}, at=f"{SERVERLESS}:6379")),
}


def test_a_durable_service_causes_no_alarm() -> None:
    given = facts({"aof_enabled": 0}, {"min-replicas-to-write": "0", "save": ""}, at=f"{MEMORYDB}:6379")
    assert {finding.weight for finding in examine(given)} == {"ok"}
    assert {finding.weight for finding in examine(replace(given, server="h:6379"))} >= {"danger", "warning"}


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "volatile-lrm", "allkeys-lfu", "eviction"])
def test_every_policy_that_deletes_locks_is_dangerous_and_says_which(policy: str) -> None:
    (found,) = of("memory", facts({"maxmemory": 10**9, "maxmemory_policy": policy}))
    assert found.weight == "danger" and policy in found.what
    assert ("as every lock has" in found.what) == policy.startswith("volatile")


SERVICE_OF = {
    "master.x.abc123.use1.cache.amazonaws.com": "Amazon ElastiCache",
    SERVERLESS: "Amazon ElastiCache Serverless",
    MEMORYDB: "Amazon MemoryDB",
    "shop.westeurope.redis.azure.net": "Azure Managed Redis",
    "shop.westeurope.redisenterprise.cache.azure.net": "Azure Managed Redis",
    "shop.redis.cache.windows.net": "Azure Cache for Redis",
    "r-bp1zxszhcgatnx.redis.rds.aliyuncs.com": "Alibaba Tair",
    "eu1-fit-otter-19994.upstash.io": "Upstash",
    "redis-16781.c273.us-east-1-2.ec2.cloud.redislabs.com": "Redis Enterprise",
    "amaaaaaa-p.redis.us-phoenix-1.oci.oraclecloud.com": "OCI Cache",
    "cache.amazonaws.com.example.org": None,
    "127.0.0.1": None,
}


@pytest.mark.parametrize("host, name", SERVICE_OF.items())
def test_a_service_is_known_by_its_address(host: str, name: str | None) -> None:
    found = recognize(f"{host}:6379", HEALTHY, [])
    assert (found and found.name) == name


SERVICE_THAT_SAYS = {
    "os": ("Amazon ElastiCache", "Amazon ElastiCache"),
    "upstash_version": ("1.10.5", "Upstash"),
    "rlec_version": ("7.4.2-169", "Redis Enterprise"),
    "dragonfly_version": ("df-v1.40.1", "Dragonfly"),
    "garnet_version": ("1.0.84", "Garnet"),
    "kvrocks_version": ("2.9.0", "Kvrocks"),
    "mvcc_depth": (0, "KeyDB"),
    "redict_version": ("7.3.6", None),
}


@pytest.mark.parametrize("field, value, name", [(field, *each) for field, each in SERVICE_THAT_SAYS.items()])
def test_a_service_is_known_by_its_info(field: str, value: Any, name: str | None) -> None:
    found = recognize("10.0.0.7:6379", {**HEALTHY, field: value}, [])
    assert (found and found.name) == name


def test_a_service_is_known_by_how_it_refuses() -> None:
    upstash = "Command is not available: 'CONFIG'. See https://upstash.com/docs/redis/overall/rediscompatibility"
    for said, name in ((upstash, "Upstash"), ("command config not support for normal user", "Alibaba Tair")):
        assert getattr(recognize("10.0.0.7:6379", {}, [said]), "name", None) == name


def test_a_release_that_reaches_no_waiter_is_a_warning() -> None:
    assert ("lock", "warning") in [(each.check, each.weight) for each in place("single", alone(), handoff_ms=9_900.0)]
    assert ("lock", "ok") in [(each.check, each.weight) for each in place("quorum", alone(), handoff_ms=9_900.0)]


@pytest.mark.parametrize("check, weight, given", JUDGEMENTS.values(), ids=JUDGEMENTS.keys())
def test_judgement(check: str, weight: str, given: Facts) -> None:
    found = of(check, given)
    assert weight in [finding.weight for finding in found]
    if weight in ("fatal", "danger", "warning"):
        assert any(finding.do for finding in found if finding.weight == weight)


def test_findings_come_by_weight() -> None:
    worst = facts({"role": "slave", "maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}, clocks_apart_s=9.0)
    weights = [finding.weight for finding in examine(worst)]
    assert weights == sorted(weights, key=["fatal", "danger", "warning", "note", "ok"].index)
    assert weights[0] == "fatal"


def test_a_server_that_tells_nothing_is_judged_by_the_lock_alone() -> None:
    silent = Survey("h:1", "single", [Facts("h:1", "holdfast")], handoff_ms=1.0)
    assert {finding.weight for finding in examine_all(silent)} == {"ok", "note"}


def place(kind: str, *servers: Facts, **more: Any) -> list[Finding]:
    for number, server in enumerate(servers):
        server.server, server.kind = f"h:{number}", kind
        server.info.setdefault("run_id", str(number))
    return examine_all(Survey("everything", kind, list(servers), **more))


def alone(**info: Any) -> Facts:
    return facts({"connected_slaves": 0, **info}, {"min-replicas-to-write": "0"})


def test_a_lock_that_cannot_be_taken_is_fatal_and_says_which_rights_it_takes() -> None:
    (finding, *_) = place("single", facts(), trial_error=errors.ScriptRefused("h:1", "NOPERM", "NOPERM no"))
    assert (finding.check, finding.weight) == ("lock", "fatal")
    assert "+evalsha" in (finding.do or "")


def test_what_servers_share_is_said_once_and_what_they_do_not_names_them() -> None:
    findings = place("cluster", facts(), facts(), facts({"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}))
    versions = [finding for finding in findings if finding.check == "version"]
    assert [(finding.what, finding.servers) for finding in versions] == [("Redis 7.4.1", ())]
    (evicting,) = [finding for finding in findings if finding.check == "memory"]
    assert (evicting.weight, evicting.servers) == ("danger", ("h:2",))


def test_a_quorum_with_a_member_gone() -> None:
    gone, summed_up = [f for f in place("quorum", alone(), alone(), silent={"h:9": "refused"}) if f.check == "members"]
    assert (gone.weight, gone.servers) == ("warning", ("h:9",))
    assert "1 of 3 members" in summed_up.what and "not one more may fail" in summed_up.what


def test_a_quorum_without_its_majority() -> None:
    silent = {"h:8": "refused", "h:9": "refused"}
    said = [f.what for f in place("quorum", alone(), silent=silent) if f.check == "members"]
    assert any("2 of 3" in what and "a majority is gone" in what for what in said)


@pytest.mark.parametrize("gone, told", [(1, False), (2, True)])
def test_sentinels_that_are_gone(gone: int, told: bool) -> None:
    silent = {f"s:{number}": "refused" for number in range(gone)}
    findings = place("sentinel", facts(), silent=silent, sentinels=3)
    assert any("nothing fails over" in finding.what for finding in findings) is told
    assert all(not finding.servers for finding in findings if finding.check == "failover"), "the servers are all there"


def test_members_that_vote_at_once_after_a_restart() -> None:
    given = [facts({"connected_slaves": 0, "aof_enabled": 0}, kind="quorum", restart_delay_s=0.0) for _ in range(3)]
    (found,) = [finding for finding in place("quorum", *given) if finding.check == "persistence"]
    assert found.weight == "danger" and "restart_delay" in found.what


def test_members_that_are_too_young_to_vote() -> None:
    error = errors.QuorumUnreachable(2, 0, ("h:0: was restarted recently and votes in 4.0 s",))
    (found, *_) = place("quorum", alone(), alone(), alone(), trial_error=error)
    assert (found.check, found.weight) == ("lock", "fatal")
    assert "wait" in (found.do or "")


def test_a_quorum_of_one_server_under_two_names() -> None:
    findings = place("quorum", alone(run_id="same"), alone(run_id="same"), alone())
    assert ("members", "fatal") in [(finding.check, finding.weight) for finding in findings]


def test_sentinels_that_complain() -> None:
    findings = place("sentinel", facts(), complaint="NOQUORUM 1 usable Sentinels")
    assert findings[0].weight == "danger" and "NOQUORUM" in findings[0].what


@pytest.mark.parametrize("tells, how", [(True, "are told"), (False, "ask"), (None, "ask")])
def test_it_says_how_waiters_come_to_know(tells: bool | None, how: str) -> None:
    (said,) = _here(Survey("h:1", "single", [facts(tells=tells)], handoff_ms=1.0))
    assert f"waiters {how} in order of arrival" in said
    assert "waiters are told" in _here(Survey("h:1", "cluster", [facts(tells=tells)], handoff_ms=1.0))[0]


@pytest.mark.parametrize(
    "forbidden, tells", [((), True), (("PUBLISH",), False), (("PUBSUB",), False), (("SUBSCRIBE",), False)]
)
def test_whether_a_server_tells_is_found_out(
    private_server: Callable[..., embedded.Server], forbidden: tuple[str, ...], tells: bool | None
) -> None:
    server = private_server(config={"rename-command": [f'{each} ""' for each in forbidden]})
    assert survey(server.url, "app").servers[0].tells is tells


def examined(url: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = holdfast("doctor", "--json", *words, url=url)
    assert done.stderr == b""
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["version"], report["command"]) == (1, "doctor")
    return done.returncode, report


def weights(report: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["weight"] for finding in reversed(report["findings"])}


def test_a_real_server_of_each_kind(server: embedded.Server) -> None:
    status, report = examined(server.url)
    assert (status, report["ok"], report["usable"]) == (0, True, True)
    assert set(report) == {
        *("version", "command", "ok", "usable", "verdict", "place", "kind", "servers", "handoff_ms", "here"),
        "findings",
    }
    assert set(report["findings"][0]) == {"check", "weight", "what", "do", "servers"}
    (told,) = report["servers"]
    assert told["product"] in ("redis", "valkey") and told["version"][0] in "6789"
    assert weights(report)["lock"] == "ok" and report["handoff_ms"] > 0
    assert abs(told["clocks_apart_s"]) < 60
    assert "geheim" not in json.dumps(report)


@pytest.mark.parametrize(
    "scheme, more, status",
    [
        ("redis://:needless@", "", 0),
        ("redis://", "?nonsense=1", 64),
        ("redis+sentinel://", "/service", 64),
        ("redis+cluster://", "", 64),
        ("redis://", "/77", 69),
        ("rediss://", "?socket_timeout=0.5", 69),
    ],
)
def test_it_is_let_in_where_locks_are_and_told_what_they_are_told(
    valkey_server: embedded.Server, scheme: str, more: str, status: int
) -> None:
    url = f"{scheme}127.0.0.1:{valkey_server.port}{more}"
    done = holdfast("status", "--json", "name", url=url)
    status_of_doctor, of_doctor = examined(url)
    assert (done.returncode, status_of_doctor) == (status, status)
    if status:
        report = json.loads(done.stdout)
        assert of_doctor["error"]["kind"] == report["error"]["kind"]
        assert (
            report["error"]["message"]
            .removeprefix("lock 'name': ")
            .startswith(of_doctor["error"]["message"].partition("; ")[0])
        )


def test_it_leaves_nothing_behind_that_lasts(valkey_server: embedded.Server) -> None:
    with redis.Redis.from_url(valkey_server.url) as client:
        assert examined(valkey_server.url)[0] == 0
        for key in client.scan_iter("*holdfast-doctor-*"):
            assert client.pttl(key) > 0 and not key.endswith(b"}")


def test_for_people(valkey_server: embedded.Server) -> None:
    done = holdfast("doctor", url=valkey_server.url)
    assert done.returncode == 0
    first, *rest = done.stdout.decode().splitlines()
    assert first.startswith(f"127.0.0.1:{valkey_server.port} can be used")
    assert any(line.startswith("ok lock ") for line in rest) and "\x1b" not in done.stdout.decode()
    assert rest[-2:] == ["", "Here: all primitives, by scripts; waiters are told in order of arrival, by messages."]


class Managed(StandIn):
    """A real server behind an INFO and a CONFIG of its own."""

    def __init__(self, server: embedded.Server, says: str) -> None:
        self._target, self._says = (server.host, server.port), says.encode()
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        server = self.keep(socket.create_connection(self._target))
        threading.Thread(target=pump, args=(server, client), name="stand-in", daemon=True).start()
        reader = hiredis.Reader()
        while data := client.recv(65536):
            reader.feed(data)
            while (request := reader.gets()) is not False:
                if request[0].upper() == b"INFO":  # doctor asks, and waits for the answer
                    client.sendall(b"$%d\r\n%b\r\n" % (len(self._says), self._says))
                elif request[0].upper() == b"CONFIG":
                    client.sendall(b"-ERR unknown command 'CONFIG'\r\n")
                else:
                    server.sendall(pack_command(tuple(request)))


@pytest.mark.parametrize(
    "says, service, usable, here",
    [
        (
            "role:master\r\nos:Amazon MemoryDB\r\nconnected_slaves:1\r\naof_enabled:0",
            "Amazon MemoryDB",
            True,
            "loses no lock",
        ),
        ("role:active-replica\r\nmvcc_depth:0\r\nredis_version:6.3.4", "KeyDB", False, None),
        ("role:master\r\nkvrocks_version:2.9.0\r\nredis_version:4.0.0", "Kvrocks", True, "not been tried"),
        ("role:master\r\nredis_version:7.2.4", None, True, "as managed services do"),
    ],
)
def test_a_server_that_says_what_it_is(
    valkey_server: embedded.Server, says: str, service: str | None, usable: bool, here: str | None
) -> None:
    with Managed(valkey_server, says) as managed:
        status, report = examined(managed.url)
    assert (status, report["usable"]) == ((0, True) if usable else (78, False)), report
    assert report["servers"][0]["service"] == service
    assert here in report["here"] if here else report["here"] is None
    assert service != "Amazon MemoryDB" or set(weights(report).values()) <= {"ok", "note"}


def test_a_server_that_evicts(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    status, report = examined(server.url)
    assert status == 0 and weights(report)["memory"] == "danger"
    assert "two holders" in report["verdict"]


def test_a_replica_cannot_be_used(
    private_server: Callable[..., embedded.Server], valkey_server: embedded.Server
) -> None:
    server = private_server(config={"replicaof": f"127.0.0.1 {valkey_server.port}"})
    with redis.Redis.from_url(server.url) as client:
        wait_for(lambda: client.info("replication")["master_link_status"] == "up", "it has caught up")
    status, report = examined(server.url)
    assert (status, report["usable"]) == (78, False)
    assert weights(report)["role"] == "fatal"


def test_a_quorum() -> None:
    with Quorum(3) as quorum:
        status, report = examined(quorum.url)
        assert (status, report["kind"], len(report["servers"])) == (0, "quorum", 3), report
        assert weights(report)["lock"] == "ok"
        assert weights(report)["persistence"] == "danger"  # restart_delay=0, and nothing is written to disk
        quorum.servers[0].kill()
        status, report = examined(quorum.url)
        assert status == 0 and weights(report)["members"] == "warning", report
        quorum.servers[1].kill()
        status, report = examined(quorum.url)
        assert status == 78 and weights(report)["lock"] == "fatal", report


def test_through_sentinel() -> None:
    with WithSentinel(down_after_ms=NEVER_DOWN_MS) as topology:
        status, report = examined(topology.url)
        assert (status, report["kind"]) == (0, "sentinel"), report
        assert weights(report)["lock"] == "ok"
        assert {"danger"} >= {weights(report)["replicas"]}  # no min-replicas-to-write
        sentinel = urlsplit(topology.url).netloc.split(",")[0]
        status, report = examined(f"redis://{sentinel}")
        assert status == 78 and weights(report)["role"] == "fatal"


def test_a_cluster() -> None:
    with Cluster(node_timeout_ms=30_000) as cluster:
        status, report = examined(cluster.url)
        assert (status, report["kind"]) == (0, "cluster"), report
        assert len(report["servers"]) >= 3 and weights(report)["lock"] == "ok"


def test_without_scripts(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server(config={"rename-command": ['EVAL ""', 'EVALSHA ""', 'SCRIPT ""']})
    status, report = examined(server.url)
    assert (status, weights(report)["lock"], weights(report)["scripts"]) == (0, "ok", "warning")


def test_a_server_that_lacks_what_clients_say_at_first(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server(config={"rename-command": [f'{each} ""' for each in ("HELLO", "CLIENT", "INFO", "CONFIG")]})
    status, report = examined(server.url)
    assert (status, weights(report)["lock"]) == (0, "ok"), report
    assert "as managed services do" in report["here"]


def test_what_a_server_lacks_is_not_followed_by_advice_to_run_this_command(
    private_server: Callable[..., embedded.Server],
) -> None:
    status, report = examined(private_server(config={"rename-command": 'TIME ""'}).url)
    (refused,) = [finding for finding in report["findings"] if finding["weight"] == "fatal"]
    assert status == 78 and "needs TIME in scripts" in refused["what"] and "holdfast doctor`" not in refused["what"]


def test_a_user_without_scripts(private_server: Callable[..., embedded.Server]) -> None:
    server = private_server()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    status, report = examined(f"redis://poor:pw@127.0.0.1:{server.port}")
    assert status == 0
    (found,) = [finding for finding in report["findings"] if finding["check"] == "scripts"]
    assert found["weight"] == "warning" and "+evalsha" in found["do"]


RIGHTS = [
    "reset",
    "resetchannels",
    "on",
    ">pw",
    "~holdfast:*",
    "+@read",
    "+@write",
    "+@pubsub",
    "+evalsha",
    "+eval",
    "+script|load",
]


def test_users_with_and_without_the_rights_it_names(server: embedded.Server, unique_name: str) -> None:
    able, unable = f"able-{unique_name[-20:]}", f"unable-{unique_name[-20:]}"
    with redis.Redis.from_url(server.url) as client:
        channels = "&holdfast:inbox:*"
        client.execute_command("ACL", "SETUSER", able, *RIGHTS, channels, "+time", "+info", "+config|get")
        client.execute_command("ACL", "SETUSER", unable, *RIGHTS, channels, "-evalsha")
        try:
            status, report = examined(f"redis://{able}:pw@127.0.0.1:{server.port}")
            assert status == 0, report
            status, report = examined(f"redis://{unable}:pw@127.0.0.1:{server.port}")
            assert status == 77, report
            (refused,) = [finding for finding in report["findings"] if finding["weight"] == "fatal"]
            assert "evalsha" in refused["what"].lower() and "+evalsha" in refused["do"]
        finally:
            client.execute_command("ACL", "DELUSER", able, unable)
