"""The file of API keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from umaserve.gateway.keys import Key, KeyFileError, read_keys

A, B, C = "a" * 16, "b" * 16, "c" * 16


def written(folder: Path, text: str) -> str:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def found(folder: Path, text: str) -> list[Key | None]:
    keys = read_keys(written(folder, text))
    assert keys and keys.find("d" * 16) is None and keys.find("") is None
    return [keys.find(key) for key in (A, B, C)]


def test_a_line_may_have_a_name_and_a_mark(tmp_path: Path) -> None:
    text = f"# who asks\nalice {A}\n\n{B}\r\n  carol\t{C}  admin \n"
    assert found(tmp_path, text) == [Key("alice"), Key("key-4"), Key("carol", True)]


@pytest.mark.parametrize("named", ["key-2", "unnamed-key-2"])
def test_a_key_without_a_name_shares_none(tmp_path: Path, named: str) -> None:
    for lines in ([f"{named} {A}", B, f"key-2 {C}"], [f"key-2 {C}", B, f"{named} {A}"]):
        a, b, c = found(tmp_path, "\n".join(lines))
        assert a == Key(named) and c == Key("key-2")
        assert b is not None and b.name not in (named, "key-2") and not b.admin


def test_keys_of_one_owner_have_one_name(tmp_path: Path) -> None:
    """As while a key is replaced by another."""
    text = f"alice {A}\nalice {B} admin\nalice {A}\nbob {C}"
    assert found(tmp_path, text) == [Key("alice"), Key("alice", True), Key("bob")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"alice {B} Admin", "it takes KEY, NAME KEY or NAME KEY admin"),
        (f"alice {B} admin more", "it takes KEY, NAME KEY or NAME KEY admin"),
        (f"{B} admin", "a key that is marked admin needs a name"),
        ("alice short", "fewer than 16 characters"),
        (f"{'n' * 129} {B}", "more than 128 characters"),  # each request would be refused
        (f"bob {A}", "another line has the same key"),
        (f"alice {A} admin", "another line has the same key"),
        (A, "another line has the same key"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(KeyFileError, match=f"line 2: .*{why}") as error:
        read_keys(written(tmp_path, f"alice {A}\n{line}\n"))
    assert A not in str(error.value) and B not in str(error.value)


def test_of_the_owners_own_key_nobody_is_asked(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, f"{A}\n"), asked=False)
    assert not keys and keys.find(A) is not None and keys.find(B) is None
    assert not read_keys("", asked=False) and not read_keys("")
