"""The files for people who build on the project: workflows, the issue form, the changelog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import umaserve

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
GROUPS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # Keep a Changelog's


def workflow() -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(name, step) for name, job in workflow()["jobs"].items() for step in job["steps"]]


def test_lint_tests_and_a_wheel_on_each_system() -> None:
    jobs = workflow()["jobs"]
    assert set(jobs["test"]["strategy"]["matrix"]["runner"]) == {
        "ubuntu-24.04", "ubuntu-24.04-arm", "macos-15",
    }  # fmt: skip
    ran = {(name, step.get("run")) for name, step in steps()}
    assert ran >= {("lint", "make lint"), ("test", "make test"), ("wheel", "make wheel")}


def test_a_workflow_runs_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    asked = [word for _, step in steps() for word in re.findall(r"make (\S+)", step.get("run", ""))]
    assert asked and set(asked) <= set(targets)


def test_each_action_is_pinned_and_may_only_read() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) for name in used)
    assert workflow()["permissions"] == {"contents": "read"}


CHECK = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]


@pytest.mark.parametrize(
    ("schema", "file", "wrong", "right"),
    [
        ("workflows", "workflows/ci.yml", "runs-on:", "runs_on:"),
        ("issue-forms", "ISSUE_TEMPLATE/problem.yml", "type: textarea", "type: text"),
    ],
)
def test_the_lint_finds_a_key_or_a_type_that_github_does_not_know(
    schema: str, file: str, wrong: str, right: str, tmp_path: Path
) -> None:
    command = [*CHECK, f"vendor.github-{schema}"]
    here = ROOT / ".github" / file
    assert subprocess.run([*command, here], capture_output=True).returncode == 0
    broken = tmp_path / here.name
    broken.write_text(here.read_text("utf-8").replace(wrong, right), "utf-8")
    assert subprocess.run([*command, broken], capture_output=True).returncode == 1
    assert f"check-jsonschema --builtin-schema vendor.github-{schema}" in (
        ROOT / "Makefile"
    ).read_text("utf-8")


def test_the_issue_form_asks_for_what_the_doctor_says() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/problem.yml").read_text("utf-8"))
    asked = {entry["id"]: entry for entry in form["body"]}
    assert "umaserve doctor" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"]["required"] is True


def test_the_changelog_is_in_order_and_its_newest_version_is_ours() -> None:
    heads = re.findall(r"^## (.*)", CHANGELOG, re.M)
    assert heads[0] == "[Unreleased]"
    found = [
        re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]
    ]
    assert found and all(found)
    versions = [tuple(map(int, one.groups()[:3])) for one in found if one]
    dates = [one[4] for one in found if one]
    assert versions == sorted(set(versions), reverse=True) and dates == sorted(dates, reverse=True)
    assert ".".join(map(str, versions[0])) == umaserve.__version__
    assert set(re.findall(r"^### (.*)", CHANGELOG, re.M)) <= GROUPS
