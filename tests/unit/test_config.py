"""Settings from flags, environment and file: precedence, refusals, and the page about them."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.untimed import untimed
from tools import config_page
from umaserve.app_settings import AppSettings
from umaserve.config import OPTIONS, SOCKET_PATH_BYTES, Config, ConfigError, load_config
from umaserve.config.kinds import Bytes, Switch, bytes_per_second
from umaserve.config.options import BY_NAME, SECTIONS
from umaserve.model_settings import ModelSettings

DOCS = Path(__file__).parents[2] / "docs"


def write(tmp_path, text: str, name: str = "c.toml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def refusal(flags=None, environ=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, environ or {})
    return str(caught.value)


def test_defaults_are_written_once():
    assert load_config({}, {}) == Config()
    assert set(load_config({}, {}).origin.values()) == {"default"}


def test_the_table_has_no_two_of_a_kind():
    for part in ("name", "flag", "env"):
        values = [getattr(option, part) for option in OPTIONS]
        assert len(set(values)) == len(values)
    places = [(o.section, o.key) for o in OPTIONS]
    assert len(set(places)) == len(places)
    assert {o.section for o in OPTIONS} <= {*SECTIONS, ""}
    names = {field.name for field in dataclasses.fields(Config)}
    ours = {o.name for o in OPTIONS} - {"kv_type"} | {"kv_type_k", "kv_type_v"}
    assert names == ours | {"apps", "models", "default_model", "origin", "warnings"}


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    path = write(tmp_path, "[model]\nn_ctx = 1000\nparallel = 2\nthreads = 3\n")
    environ = {"UMA_N_CTX": "2000", "UMA_N_SEQ": "4", "UMA_CONFIG": path}
    config = load_config({"n_ctx": "3000"}, environ)
    assert (config.n_ctx, config.n_seq, config.threads, config.n_batch) == (3000, 4, 3, 0)
    assert config.origin["n_ctx"] == "flag --n-ctx"
    assert config.origin["n_seq"] == "environment UMA_N_SEQ"
    assert config.origin["threads"] == f"{path}: [model] threads"
    assert config.origin["n_batch"] == "default"
    assert config.config == path


def test_the_flag_names_another_file_than_the_environment(tmp_path):
    one = write(tmp_path, "[model]\nn_ctx = 100\n", "one.toml")
    two = write(tmp_path, "[model]\nn_ctx = 200\n", "two.toml")
    assert load_config({"config": two}, {"UMA_CONFIG": one}).n_ctx == 200


def test_yaml_says_the_same_as_toml(tmp_path):
    toml = write(
        tmp_path,
        '[model]\nkv_type = "q8:f16"\nmmap = false\n[ipc]\nhttp = "off"\n'
        '[scheduler]\nbmt_budget = "off"\n[qos.interactive]\nlatency_cap = 1.5\n[qos.background]\n'
        '[metrics]\ndashboard = "off"\n[limits]\nmax_frame_bytes = "2MiB"\n',
    )
    yaml = write(
        tmp_path,
        "model:\n  kv_type: q8:f16\n  mmap: no\nipc:\n  http: off\nscheduler:\n  bmt_budget: off\n"
        "qos:\n  interactive:\n    latency_cap: 1.5\n  background:\nmetrics:\n  dashboard: off\n"
        "limits:\n  max_frame_bytes: 2MiB\n",
        "c.yaml",
    )
    first, second = load_config({"config": toml}, {}), load_config({"config": yaml}, {})
    assert dataclasses.replace(first, config="") == dataclasses.replace(second, config="")
    assert (first.kv_type_k, first.kv_type_v) == ("q8_0", "f16")
    assert (first.use_mmap, first.bmt_budget, first.http) == (False, "off", "off")
    assert first.max_frame_bytes == 2 * 1024 * 1024
    assert load_config({"config": write(tmp_path, "", "empty.yml")}, {}).n_ctx == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[model]\nn_ctxx = 1", "unknown key 'n_ctxx' in [model]; did you mean n_ctx?"),
        ("[modle]\nn_ctx = 1", "unknown section or key 'modle'; did you mean model?"),
        ("n_ctx = 100", "did you mean [model] n_ctx?"),
        ("[scheduler]\nlatency_cap = 2", "did you mean [qos.interactive] latency_cap?"),
        ("[limits]\nidle_timeout = 2", "did you mean [limits] idle_timeout_s?"),
        ("[model]\nmodel = 'x'", "did you mean [model] path?"),
        ("[qos.backgroud]\nx = 1", "unknown section or key 'qos.backgroud'"),
        ("model = 'x.gguf'", "model must be a section with keys such as path, not a string"),
        ("qos = 1", "qos must be a section, not a number"),
        ("[model]\nn_ctx = 'big'", "[model] n_ctx: 'big' is not possible: it takes \"auto\" or"),
        ("[model]\nn_ctx = true", "[model] n_ctx: True is not possible"),
        ("[model]\nmmap = 3", "[model] mmap: 3 is not possible: it takes true or false"),
        ("[model\n", "not valid TOML"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, words):
    path = write(tmp_path, text)
    message = refusal({"config": path})
    assert words in message
    assert path in message


def test_files_that_are_none(tmp_path):
    assert "No such file" in refusal({"config": str(tmp_path / "none.toml")})
    assert "directory" in refusal({"config": str(tmp_path)})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refusal({"config": str(tmp_path / "binary.toml")})
    assert "not valid YAML" in refusal({"config": write(tmp_path, "a: [", "bad.yaml")})
    assert "must hold sections" in refusal({"config": write(tmp_path, "- 1", "list.yaml")})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n_ctx", "x", "flag --n-ctx: 'x' is not possible: it takes \"auto\" or a whole"),
        ("n_ctx", "1", "from 16 to"),
        ("experts_used", "0", "\"model\" or a whole number from 1 to 1024"),
        ("backend", "quantum", "one of auto, metal, vulkan, cuda, hip, cpu"),
        ("kv_type", "q3", "one of f16, q8, q6, q5, q4, or two of them as K:V"),
        ("kv_type", "q8:q8:q8", "K:V"),
        ("bmt_budget", "fast", "such as 320GBps"),
        ("bmt_budget", "0GBps", "above 0"),
        ("latency_cap", "nan", "a number from 1 to 100"),
        ("http", "8080", "HOST:PORT (such as 127.0.0.1:8080) or unix:PATH"),
        ("http", "localhost:99999", "HOST:PORT"),
        ("http", "::1:80", "HOST:PORT"),
        ("max_frame_bytes", "1 parsec", "such as 65536, 64KiB or 1MiB"),
        ("max_frame_bytes", "1", "a size from 64"),
        ("socket", "", "a path"),
        ("socket", "/tmp/" + "x" * SOCKET_PATH_BYTES, "choose a shorter one"),
        ("nonsense", "1", "unknown option 'nonsense'"),
    ],
)
def test_values_that_will_not_do(name, value, words):
    assert words in refusal({name: value})


def test_a_socket_path_of_exactly_the_limit_passes():
    path = "/tmp/" + "x" * (SOCKET_PATH_BYTES - 6)
    assert load_config({"socket": path}, {}).socket == path
    assert "one has" in refusal({"socket": path + "x"})


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("kv_type", "q8", "kv_type_v", "q8_0"),
        ("kv_type", "q6", "kv_type_k", "q5_1"),
        ("kv_type", "Q4:f16", "kv_type_k", "q4_0"),
        ("bmt_budget", "320 GB/s", "bmt_budget", "320GBps"),
        ("gpu_layers", "all", "gpu_layers", -1),
        ("experts_used", "model", "experts_used", -1),
        ("experts_used", "4", "experts_used", 4),
        ("threads", "auto", "threads", 0),
        ("n_ctx", "auto", "n_ctx", 0),
        ("max_prompt_bytes", "auto", "max_prompt_bytes", 0),
        ("log_level", "WARNING", "log_level", "warn"),
        ("max_prompt_bytes", "1.5KiB", "max_prompt_bytes", 1536),
        ("max_prompt_bytes", "64kb", "max_prompt_bytes", 64000),
        ("http", "[::1]:8080", "http", "[::1]:8080"),
        ("http", "unix:/tmp/h.sock", "http", "unix:/tmp/h.sock"),
        ("use_mmap", False, "use_mmap", False),
        ("use_mlock", "yes", "use_mlock", True),
    ],
)
def test_values_that_do(name, value, field, expected):
    assert getattr(load_config({name: value}, {}), field) == expected


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_config({"model": "~/m.gguf"}, {}).model == "/home/someone/m.gguf"


def test_head_major_needs_an_f16_v():
    message = refusal({"kv_type": "q8"}, {"UMA_KV_PACK": "head-major"})
    assert "environment UMA_KV_PACK" in message and "flag --kv-type" in message
    assert "--kv-type q8:f16" in message
    config = load_config({"kv_type": "q8:f16", "kv_pack": "head-major"}, {})
    assert config.head_major


def test_a_draft_model_alone_drafts_only_where_there_is_one():
    message = refusal({"speculate": "draft"})
    assert "flag --speculate" in message and "--draft-model REF" in message
    config = load_config({"speculate": "draft"}, {"UMA_DRAFT_MODEL": "small.gguf"})
    assert (config.speculate, config.draft_model) == ("draft", "small.gguf")


def test_ubatch_fits_batch():
    assert "n_ubatch 512" in refusal({"n_batch": "128", "n_ubatch": "512"})


def test_debug_is_a_log_level_that_the_real_one_beats(tmp_path):
    path = write(tmp_path, '[logging]\nlog_level = "error"\n')
    assert load_config({"config": path}, {"UMA_DEBUG": "1"}).log_level == "debug"
    assert load_config({}, {"UMA_DEBUG": "0"}).log_level == "info"
    assert load_config({}, {"UMA_DEBUG": "1", "UMA_LOG_LEVEL": "warn"}).log_level == "warn"


def test_programs_have_a_weight_and_a_lane(tmp_path):
    text = '[apps."zed"]\nweight = 2\nlane = "interactive"\n\n[apps.cron]\nlane = "background"\n'
    told = {"zed": AppSettings(2.0, "interactive"), "cron": AppSettings(1.0, "background")}
    config = load_config({"config": write(tmp_path, text)}, {})
    assert dict(config.apps) == told
    yaml = "apps:\n  zed: {weight: 2, lane: interactive}\n  cron: {lane: background}\n"
    assert dict(load_config({"config": write(tmp_path, yaml, "c.yaml")}, {}).apps) == told
    again = load_config({"config": write(tmp_path, config.explain(), "again.toml")}, {})
    assert dict(again.apps) == told
    assert not load_config({}, {}).apps


def test_models_have_names_and_settings(tmp_path):
    text = (
        '[models."coder"]\npath = "c.gguf"\naliases = ["fim", "tab"]\nn_ctx = 4096\n'
        'kv_type = "q8:f16"\nttl = "15m"\n\n[models.mini]\npath = "m.gguf"\nrole = "embed"\n'
        "pin = true\nttl = \"off\"\n"
    )
    told = {
        "coder": ModelSettings(
            "c.gguf", ("fim", "tab"), n_ctx=4096, kv_type=("q8_0", "f16"), ttl_s=900.0
        ),
        "mini": ModelSettings("m.gguf", role="embed", pin=True, ttl_s=0.0),
    }
    path = write(tmp_path, text)
    config = load_config({"config": path}, {})
    assert dict(config.models) == told
    assert (config.model, config.default_model) == ("c.gguf", "coder"), "the first is the default"
    again = load_config({"config": write(tmp_path, config.explain(), "again.toml")}, {})
    assert (dict(again.models), again.default_model) == (told, "coder")
    assert load_config({"config": path, "model": "mini"}, {}).default_model == "mini"
    other = load_config({"config": path, "model": ["x.gguf", "mini", "~/y.gguf"]}, {})
    assert (other.model, other.default_model) == ("x.gguf", "")
    assert list(other.models) == ["coder", "mini", "y"]
    assert other.models["y"].path == os.path.expanduser("~/y.gguf")
    assert "two have the name" in refusal({"model": ["a", "b/x.gguf", "c/x.gguf"]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\naliases = ['x']", "the key path is missing"),
        ('[models.a]\npath = "x"\nrole = "embd"', "did you mean embed?"),
        ('[models.a]\npath = "x"\nttl = "soon"', "such as 90s, 15m or 2h"),
        ('[models.a]\npath = "x"\npinned = true', "did you mean pin?"),
        ("models = 3", "must hold sections"),
        ("[apps.zed]\nwieght = 2", "unknown key 'wieght'; did you mean weight?"),
        ('[apps.zed]\nlane = "backgroud"', "did you mean background?"),
        ("[apps.zed]\nweight = 0", "it takes a number from 0.01 to 100"),
        ("[apps.zed]\nweight = true", "it takes a number"),
        ("[apps]\nzed = 1", "must be a section"),
        ("apps = 3", "must hold sections"),
        ('[apps.""]\nweight = 1', "names no program"),
        ("[app.zed]\nweight = 1", "did you mean apps?"),
    ],
)
def test_what_a_file_may_not_say_of_models_and_programs(tmp_path, text, words):
    assert words in refusal({"config": write(tmp_path, text)})


def test_unknown_variables_are_warned_about():
    environ = {"UMA_SOKC": "/x", "UMA_CACHE_DIR": "/c", "HOME": "/", "UMA_N_CTX": ""}
    config = load_config({}, environ)
    (warning,) = config.warnings
    assert "UMA_SOKC" in warning and "did you mean UMA_SOCK?" in warning
    assert config.n_ctx == 0


def test_explain_reads_back_and_says_where_from(tmp_path):
    given_flags = {"kv_type": "q8:f16", "model": 'a "b" \\c.gguf', "max_tokens": "99"}
    config = load_config(given_flags, {"UMA_THREADS": "3"})
    text = config.explain()
    assert re.search(r"^threads = 3 +# environment UMA_THREADS$", text, re.M)
    again = load_config({"config": write(tmp_path, text)}, {})
    assert dataclasses.replace(again, config="") == config


@untimed
@given(st.sampled_from(OPTIONS), st.text(max_size=12))
def test_any_text_is_taken_or_refused_with_its_origin(option, text):
    if option.name == "config":
        return
    try:
        load_config({option.name: text}, {})
    except ConfigError as error:
        assert option.flag in str(error)


@untimed
@given(st.integers(64, 2**30), st.sampled_from(["", "B", " b"]))
def test_sizes_in_bytes(size, unit):
    assert Bytes(64, 2**30).parse(f"{size}{unit}") == size


def test_bandwidth_in_bytes_per_second():
    assert bytes_per_second("320GBps") == 320e9
    assert bytes_per_second("auto") is None
    assert bytes_per_second("off") is None


def test_the_page_is_the_tables():
    assert (DOCS / "CONFIG.md").read_text("utf-8") == config_page.page(), (
        "write it again: python -m tools.config_page"
    )


def test_the_page_names_everything_and_its_example_works(tmp_path):
    page = config_page.page()
    for option in OPTIONS:
        assert f"`{option.env}`" in page
        assert option.flag in page
        if isinstance(option.kind, Switch):
            assert f"--no-{option.flag[2:]}" in page
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    config = load_config({"config": write(tmp_path, example)}, {})
    assert (config.n_ctx, config.kv_type_k, config.max_queue) == (8192, "q8_0", 64)


def test_the_public_names_of_the_serve_command():
    """The flags, variables and defaults that scripts rely on."""
    for flag, env, field, default in [
        ("--model", "UMA_MODEL", "model", ""),
        ("--n-ctx", "UMA_N_CTX", "n_ctx", 0),
        ("--parallel", "UMA_N_SEQ", "n_seq", 8),
        ("--n-batch", "UMA_N_BATCH", "n_batch", 0),
        ("--n-ubatch", "UMA_N_UBATCH", "n_ubatch", 0),
        ("--threads", "UMA_THREADS", "threads", 0),
        ("--backend", "UMA_BACKEND", "backend", "auto"),
        ("--gpu-layers", "UMA_GPU_LAYERS", "gpu_layers", -1),
        ("--mmap", "UMA_USE_MMAP", "use_mmap", True),
        ("--mlock", "UMA_USE_MLOCK", "use_mlock", False),
        ("--experts-used", "UMA_EXPERTS_USED", "experts_used", -1),
        ("--pretouch", "UMA_PRETOUCH", "pretouch", False),
        ("--latency-cap", "UMA_LATENCY_CAP", "latency_cap", 1.2),
        ("--bmt-budget", "UMA_BMT_BUDGET", "bmt_budget", "auto"),
        ("--tick-budget-ms", "UMA_TICK_BUDGET_MS", "tick_budget_ms", 50.0),
        ("--max-merge", "UMA_MAX_MERGE", "max_merge", 0),
        ("--kv-pack", "UMA_KV_PACK", "kv_pack", "token-major"),
        ("--socket", "UMA_SOCK", "socket", "/tmp/uma.sock"),
        ("--http", "UMA_HTTP", "http", "off"),
        ("--max-sessions", "UMA_MAX_SESSIONS", "max_sessions", 32),
        ("--max-queue", "UMA_MAX_QUEUE", "max_queue", 256),
        ("--max-prompt-bytes", "UMA_MAX_PROMPT_BYTES", "max_prompt_bytes", 0),
        ("--max-frame-bytes", "UMA_MAX_FRAME_BYTES", "max_frame_bytes", 0),
        ("--max-tokens", "UMA_MAX_TOKENS", "max_tokens", 0),
        ("--idle-timeout", "UMA_IDLE_TIMEOUT_SEC", "idle_timeout_s", 300.0),
        ("--config", "UMA_CONFIG", "config", ""),
        ("--log-level", "UMA_LOG_LEVEL", "log_level", "info"),
        ("--scorecard", "UMA_SCORECARD", "scorecard", ""),
        ("--trace", "UMA_TRACE", "trace", ""),
        ("--dashboard", "UMA_DASHBOARD", "dashboard", "auto"),
    ]:
        option = BY_NAME[field]
        assert (option.flag, option.env) == (flag, env)
        assert getattr(Config(), field) == default
    assert (BY_NAME["kv_type"].flag, BY_NAME["kv_type"].env) == ("--kv-type", "UMA_KV_TYPE")
    assert BY_NAME["ipc"].flag == "--ipc" and BY_NAME["log_json"].flag == "--log-json"


def test_adapters_have_names_files_and_scales(tmp_path) -> None:
    file = tmp_path / "uma.toml"
    file.write_text(
        '[models."m"]\npath = "m.gguf"\nlora = {a = "a.gguf", b = {path = "b.gguf", scale = 0}}\n'
    )
    model = load_config({"config": str(file)}, {}).models["m"]
    assert model.lora == (("a", "a.gguf", 1.0), ("b", "b.gguf", 0.0))
    config = load_config({"lora": "a=a.gguf, b=b:c.gguf:0.1234567"}, {})
    assert config.lora == (("a", "a.gguf", 1.0), ("b", "b:c.gguf", 0.1234567))
    assert 'lora = {"a" = {path = "a.gguf", scale = 1.0}' in config.explain()
    file.write_text(config.explain())
    assert load_config({"config": str(file)}, {}).lora == config.lora
    file.write_text('[models."m"]\npath = "m.gguf"\nlora = {}\n')
    file.write_text(load_config({"config": str(file)}, {}).explain())
    assert load_config({"config": str(file)}, {}).models["m"].lora == ()
    for wrong in ("a.gguf", "a=", "=a.gguf", "a=x,a=y", "a=x:101", "a=x\udcff"):
        assert "flag --lora" in refusal({"lora": wrong})
