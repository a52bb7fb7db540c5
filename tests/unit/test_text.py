"""Whole UTF-8 and stop strings against an oracle that sees the whole string at once."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from umaserve.server.requests.tokens.text import TextAssembler, prefix_function

# few letters, so that stop strings overlap themselves and each other
letters = st.text(alphabet="abé€😀\ufffd", max_size=30)
stop_lists = st.lists(st.text(alphabet="abé€😀", min_size=1, max_size=5), max_size=4)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def oracle(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ended = [s for s in stops if text[:end].endswith(s)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


def assemble(pieces: list[bytes], stops: list) -> tuple[list[str], bool]:
    assembler, out = TextAssembler(stops), []
    for piece in pieces:
        text, stopped = assembler.push(piece)
        out.append(text)
        if stopped:
            return out, True
    out.append(assembler.finish())
    return out, False


@given(letters, stop_lists, st.lists(st.integers(0, 200), max_size=20))
@example("aab", ["abc", "b"], [1, 2])
@example("abab€", ["aba€", "bab"], [])
def test_text_equals_whole_string_oracle(text: str, stops: list[str], cuts: list[int]) -> None:
    out, stopped = assemble(cut(text.encode(), cuts), list(stops))
    expected, ends = oracle(text, stops)
    assert "".join(out) == expected
    assert stopped == ends


@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=20))
def test_any_bytes_decode_like_python(data: bytes, cuts: list[int]) -> None:
    out, _ = assemble(cut(data, cuts), [])
    assert "".join(out) == data.decode("utf-8", "replace")


@given(letters, stop_lists, st.lists(st.integers(0, 200), max_size=20))
def test_nothing_given_out_has_to_be_taken_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """At any moment what was given out is a prefix of the answer, whatever follows."""
    pieces = cut(text.encode(), cuts)
    given_out = ""
    assembler = TextAssembler(stops)
    for i, piece in enumerate(pieces):
        new, stopped = assembler.push(piece)
        given_out += new
        if stopped:
            break
        seen = b"".join(pieces[: i + 1]).decode("utf-8", "ignore")
        for stop in stops:
            for k in range(1, len(stop) + 1):
                future = oracle(seen + stop[k:], stops)[0]
                assert future.startswith(given_out) or not seen.endswith(stop[:k])


@given(letters, st.lists(st.integers(0, 200), max_size=20))
def test_without_stops_only_unfinished_characters_wait(text: str, cuts: list[int]) -> None:
    assembler, data, out = TextAssembler(), b"", ""
    for piece in cut(text.encode(), cuts):
        data += piece
        out += assembler.push(piece)[0]
        assert out == data.decode("utf-8", "ignore")
        assert assembler.holding == (out.encode() != data)


def test_empty_stops_are_ignored() -> None:
    assembler = TextAssembler(["", "é"])
    assert assembler.push(b"x\xc3") == ("x", False)
    assert assembler.push(b"\xa9y") == ("", True)
    assert assembler.push(b"more") == ("", True)
    assert assembler.finish() == ""


def test_held_text_comes_out_at_the_end() -> None:
    assembler = TextAssembler(["stop!"])
    assert assembler.push(b"a sto") == ("a ", False)
    assert assembler.holding
    assert assembler.push(b"p") == ("", False)
    assert assembler.finish() == "stop"


@given(st.text(alphabet="ab", min_size=1, max_size=12))
def test_prefix_function_is_longest_border(pattern: str) -> None:
    for i, length in enumerate(prefix_function(pattern)):
        prefix = pattern[: i + 1]
        borders = [k for k in range(i + 1) if prefix[:k] == prefix[len(prefix) - k :]]
        assert length == max(borders)


# --- tokens without text, which are matched by their names ------------------------------------

symbols = st.lists(
    st.tuples(st.booleans(), st.text(alphabet="ab<é", min_size=1, max_size=4)), max_size=12
)
few_stops = st.lists(st.text(alphabet="ab<é", min_size=1, max_size=6), max_size=3)


def oracle_with_names(stream: list[tuple[bool, str]], stops: list[str]) -> tuple[str, bool]:
    """The visible text of (is a name, text) pairs, cut where the longest stop string begins."""
    symbols = [
        text if is_name else c for is_name, text in stream for c in ([text] if is_name else text)
    ]
    names = [is_name for is_name, text in stream for _ in ([text] if is_name else text)]
    for end in range(1, len(symbols) + 1):
        begins = []
        for begin in range(end):
            with_names = "".join(symbols[begin:end])
            text = [c for c, is_name in zip(symbols, names, strict=True)][begin:end]
            shown = [c for c, n in zip(text, names[begin:end], strict=True) if not n]
            if with_names in stops or (not names[end - 1] and "".join(shown) in stops):
                begins.append(begin)
        if begins:
            shown = [c for c, n in zip(symbols, names, strict=True) if not n]
            return "".join(shown[: names[: min(begins)].count(False)]), True
    return "".join(c for c, n in zip(symbols, names, strict=True) if not n), False


@given(symbols, few_stops, st.booleans())
@example([(False, "xa"), (True, "<b"), (False, "b")], ["a<b"], False)
@example([(False, "a"), (True, "bab"), (False, "abc")], ["ababc", "babc"], False)
@example([(False, "a"), (True, "<b")], ["a<b"], True)
def test_names_match_as_a_whole_and_never_show(stream, stops, last_one_ends_it) -> None:
    assembler, out, stopped, end = TextAssembler(stops), "", False, b""
    tokens = list(stream)
    if last_one_ends_it and tokens and tokens[-1][0]:
        end = tokens.pop()[1].encode()
    for is_name, text in tokens:
        new, stopped = (
            assembler.push(b"", text.encode()) if is_name else assembler.push(text.encode())
        )
        out += new
        if stopped:
            break
    out += assembler.finish(end)
    expected, ends = oracle_with_names(stream, stops)
    assert out == expected
    assert stopped == ends or end


@given(symbols, few_stops)
def test_what_is_given_out_beside_names_is_never_taken_back(stream, stops) -> None:
    assembler, given_out, taken = TextAssembler(stops), "", ""
    expected, _ = oracle_with_names(stream, stops)
    for is_name, text in stream:
        new, stopped = (
            assembler.push(b"", text.encode()) if is_name else assembler.push(text.encode())
        )
        given_out += new
        taken += "" if is_name else text
        assert expected.startswith(given_out)
        if stopped:
            break
        assert assembler.holds_text == (given_out != taken)


def test_a_part_of_a_name_is_no_stop_string() -> None:
    assembler = TextAssembler([">", "im_start", "<|im_start|", "t|>u"])
    assert assembler.push(b"", b"<|im_start|>") == ("", False)
    assert assembler.push(b"user") == ("user", False)
    # typed, it is text like any other
    assert assembler.push(b"<|im_start|>") == ("<|", True)


def test_names_count_only_where_something_is_matched() -> None:
    assembler = TextAssembler()
    assert not assembler.matches
    assert assembler.push(b"", b"<s>") == ("", False)
    assert assembler.finish(b"</s>") == ""
