"""What an operator sees: lines in the engine's log, and metrics; and what a clock that is set does to a node."""

import json
import logging
import os
import re
from pathlib import Path

import pytest
from fake_vllm import Request, Scheduler
from tables import leaf, split, table_bytes

from kvtide import metrics
from kvtide.fallbacks import Fallbacks
from kvtide.tide import Tide

OPS = Path(__file__).resolve().parents[1] / "ops"
# Decides by the free fraction, which it has seen up to a half.
NARROW = dict(
    nodes=[split("free_fraction", 1, 0.5), leaf(watermark=10), leaf(watermark=10)], ranges={"free_fraction": (0.0, 0.5)}
)


@pytest.fixture
def acting(environ, monkeypatch, caplog):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    monkeypatch.setenv("KVTIDE_INTERVAL", "1")
    caplog.set_level(logging.INFO, logger="vllm.kvtide")
    return environ


def lines(caplog):
    found = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "vllm.kvtide"]
    caplog.clear()
    return found


def test_one_line_says_which_table_is_loaded(acting, caplog):
    acting.write_bytes(table_bytes([leaf()], "full", metadata={"name": "reasoning"}))
    scheduler = Scheduler()
    (level, line), = lines(caplog)  # fmt: skip
    assert level == "INFO"
    assert re.fullmatch(
        r"kvtide: table 'reasoning' loaded: mode act, profile full, sha256 [0-9a-f]{12}, 1 leaves, decides every 1 steps "
        rf"\({acting}\)", line)  # fmt: skip
    assert scheduler.kvtide.metrics.table[:2] == ("reasoning", "full")


def test_one_line_says_why_a_table_is_refused(acting, caplog):
    tier = [split("host_free_fraction", 1, 0.5), leaf(), leaf()]
    acting.write_bytes(table_bytes(tier, ranges={"host_free_fraction": (1.0, 1.0)}))
    scheduler = Scheduler()
    assert lines(caplog) == [(
        "ERROR",
        f"kvtide: {acting} is refused (host): the table decides by host_free_fraction, which was 1 to 1 in training and is "
        "always 0 here: vllm-0.33 has no host tier; the engine goes on by itself",
    )]  # fmt: skip
    assert scheduler.kvtide.metrics.of("reloads") == {"host": 1}
    scheduler.schedule()
    assert scheduler.kvtide.metrics.of("fallbacks") == {"host": 1}


def test_a_table_that_needs_a_prefix_cache_is_refused_without(acting, monkeypatch):
    cached = [split("evictable_fraction", 1, 0.5), leaf(), leaf()]
    acting.write_bytes(table_bytes(cached, ranges={"evictable_fraction": (0.2, 0.9)}))
    assert Scheduler().kvtide.pilot.table is not None
    init = Scheduler.__mro__[2].__init__

    def without_cache(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.kv_cache_manager.enable_caching = False

    monkeypatch.setattr(Scheduler.__mro__[2], "__init__", without_cache)
    assert Scheduler().kvtide.pilot.refusal == "host"


def test_a_long_fallback_is_said_with_its_feature_and_so_is_its_end(acting, caplog):
    acting.write_bytes(table_bytes(**NARROW))
    scheduler = Scheduler(num_blocks=1001)
    scheduler.add_request(Request("a", 50, 5000))
    lines(caplog)
    for _ in range(1006):
        scheduler.schedule()
    assert lines(caplog) == []
    scheduler.schedule()
    (level, line), = lines(caplog)  # fmt: skip
    assert level == "WARNING"
    assert line.startswith("kvtide: falling back for 1000 decisions (")
    assert line.endswith("out_of_range; outside what the table was trained on: free_fraction")
    assert scheduler.kvtide.metrics.of("out_of_range") == {"free_fraction": 1007}
    assert scheduler.kvtide.metrics.values["in_force"] == 0.0
    scheduler.kv_cache_manager.free = 200
    for _ in range(40):
        scheduler.schedule()
    (level, line), = lines(caplog)  # fmt: skip
    assert line.startswith("kvtide: the table decides again, after 1031 fallbacks (")
    assert scheduler.kvtide.metrics.values["in_force"] == 1.0


class Lines(list):
    def warning(self, text, *args):
        self.append(text % args)


def test_a_long_fallback_is_said_ever_more_rarely_and_a_short_one_never():
    lines = Lines()
    fallbacks = Fallbacks(lines)
    for second in range(100_000):
        fallbacks.note("stale", (), second * 1_000_000)
    assert [line.split(" for ")[1].split(")")[0] for line in lines] == [
        "61 decisions (60 s", "601 decisions (600 s", "6001 decisions (6000 s", "60001 decisions (60000 s"
    ]  # fmt: skip
    fallbacks.note(None, (), 100_000_000_000)
    assert lines[4:] == ["kvtide: the table decides again, after 100000 fallbacks (100000 s)"]
    for decision in range(5000):
        fallbacks.note("stale" if decision % 100 else None, (), decision)
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("fallback", "engine", "wanted"),
    [(None, 0.0, 5), ("table", 0.0, 5), ("table", 0.02, 2), ("engine", 0.0, 0), ("0.25", 0.0, 25), ("0", 0.02, 0)],
)
def test_what_is_fallen_back_to(acting, monkeypatch, fallback, engine, wanted):
    if fallback:
        monkeypatch.setenv("KVTIDE_FALLBACK", fallback)
    monkeypatch.setenv("KVTIDE_OUT_OF_RANGE_DECISIONS", "1")
    acting.write_bytes(table_bytes(**NARROW, metadata={"fallback": "0.05"}))
    scheduler = Scheduler(watermark=engine)
    scheduler.add_request(Request("a", 50, 500))
    scheduler.schedule()
    assert scheduler.kvtide.metrics.of("fallbacks") == {"out_of_range": 1}
    assert scheduler.kv_cache_manager.watermark_blocks == wanted


def test_a_clock_that_is_set_freezes_neither_decisions_nor_reloads(acting, monkeypatch):
    monkeypatch.setenv("KVTIDE_RELOAD_S", "1")
    acting.write_bytes(table_bytes([leaf(watermark=4)]))
    steady, wall, seen = [100.0], [1.7e9], []
    monkeypatch.setattr(Tide, "clock", staticmethod(lambda: steady[0]))
    monkeypatch.setattr(Tide, "wall_clock", staticmethod(lambda: wall[0]))
    scheduler = Scheduler()
    tide = scheduler.kvtide

    def steps(name, stamped_s):
        scheduler.add_request(Request(name, 50, 5000, arrival_s=stamped_s))
        for _ in range(5):
            steady[0] += 1.0
            wall[0] += 1.0
            scheduler.schedule()
        seen.append((tide.metrics.counts["decisions", ""], scheduler.kv_cache_manager.watermark_blocks))
        return tide.now_us - tide.arrived_us[name]

    assert steps("a", wall[0]) == 5_000_000
    # NTP sets the clock three hours forward, and finds out later.
    wall[0] += 3 * 3600
    acting.write_bytes(table_bytes([leaf(watermark=10)]))
    assert steps("b", wall[0]) == 5_000_000
    wall[0] -= 3 * 3600
    acting.write_bytes(table_bytes([leaf(watermark=0)], metadata={"name": "another"}))
    assert steps("c", wall[0] - 0.5) == 5_500_000
    # Stamped before a step, and received after it, one way and the other.
    assert steps("d", wall[0] + 7200) == 5_000_000
    assert steps("e", wall[0] - 7200) == 65_000_000
    assert seen == [(5, 5), (10, 25), (15, 0), (20, 0), (25, 0)]
    assert tide.now_us == 125_000_000


def test_the_dashboard_and_the_alerts_name_metrics_there_are():
    made = {f"kvtide_{name}_total" for name in metrics.COUNTERS} | {f"kvtide_{name}" for name in metrics.GAUGES}
    dashboard = json.loads((OPS / "grafana.json").read_text())
    texts = {
        "grafana.json": " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])),
        "alerts.yml": (OPS / "alerts.yml").read_text(),
        "README.md": (OPS / "README.md").read_text(),
    }
    for name, text in texts.items():
        named = set(re.findall(r"\bkvtide_\w+", text))
        assert named <= made, name
        assert named, name
    assert made <= set(re.findall(r"\bkvtide_\w+", texts["grafana.json"])), "everything has its panel"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_labels_in_dashboard_and_alerts_are_those_of_the_metrics():
    labels = {f"kvtide_{name}_total": spec[1] for name, spec in metrics.COUNTERS.items()}
    labels |= {f"kvtide_{name}": spec[1] for name, spec in metrics.GAUGES.items()}
    text = (OPS / "grafana.json").read_text().replace('\\"', '"') + (OPS / "alerts.yml").read_text()
    for name, selector in re.findall(r"(kvtide_\w+)\{([^}]*)\}", text):
        for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector):
            assert label in (*metrics.BASE, *labels[name], "instance", "job"), (name, label)


def test_an_alert_on_a_counter_sees_its_first_value_too():
    rules = (OPS / "alerts.yml").read_text().split("- alert:")[1:]
    for rule in rules:
        for counter in re.findall(r"increase\((kvtide_\w+)", rule):
            assert re.search(rf"unless {counter}\S* offset", rule), rule


def test_prometheus_is_told_what_was_counted(acting, monkeypatch):
    client = pytest.importorskip("prometheus_client")
    now = [0.0]
    monkeypatch.setattr(Tide, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setenv("KVTIDE_OUT_OF_RANGE_DECISIONS", "1")
    acting.write_bytes(table_bytes(**NARROW, metadata={"name": "first"}))

    def told(metric, **labels):
        return client.REGISTRY.get_sample_value(metric, {"host": "vllm", "mode": "act", **labels}) or 0.0

    before = told("kvtide_decisions_total"), told("kvtide_out_of_range_total", feature="free_fraction")
    scheduler = Scheduler()
    scheduler.add_request(Request("a", 50, 5000))
    for _ in range(20):
        now[0] += 0.3
        scheduler.schedule()
    after = told("kvtide_decisions_total"), told("kvtide_out_of_range_total", feature="free_fraction")
    # Told at most once a second, so up to three decisions late; each looked at a feature out of range.
    made = scheduler.kvtide.metrics.counts["decisions", ""]
    assert made == 20
    assert made - 4 <= after[0] - before[0] == after[1] - before[1] <= made
    assert told("kvtide_in_force") == 0.0
    digest = scheduler.kvtide.metrics.table[2]
    assert told("kvtide_table_info", name="first", profile="watermark", hash=digest) == 1.0
    os.utime(acting, (0, 0))
    acting.write_bytes(table_bytes([leaf()], metadata={"name": "second"}))
    now[0] += 10
    scheduler.schedule()
    scheduler.schedule()
    assert told("kvtide_table_info", name="first", profile="watermark", hash=digest) == 0.0
    assert scheduler.kvtide.metrics.table[0] == "second"


def test_prometheus_is_told_of_failures_when_nothing_can_be_decided(acting, monkeypatch):
    client = pytest.importorskip("prometheus_client")
    now = [0.0]
    monkeypatch.setattr(Tide, "clock", staticmethod(lambda: now[0]))
    acting.write_bytes(table_bytes([leaf(watermark=10)]))
    labels = {"host": "vllm", "mode": "act"}

    def told(metric, **more):
        return client.REGISTRY.get_sample_value(metric, labels | more) or 0.0

    before = told("kvtide_errors_total", where="decide")
    scheduler = Scheduler()
    scheduler.add_request(Request("a", 50, 5000))
    scheduler.schedule()
    assert told("kvtide_in_force") == 1.0
    monkeypatch.setattr(scheduler.kvtide, "observe", lambda: 1 / 0)
    for _ in range(4):
        now[0] += 1.0
        scheduler.schedule()
    assert told("kvtide_in_force") == 0.0
    assert told("kvtide_errors_total", where="decide") > before
