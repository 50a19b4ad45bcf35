from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import config_file
from trainer.errors import InputError, SettingError


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "pipeline.toml"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_each_key_has_the_line_that_it_is_first_written_on():
    text = """# a comment with [brackets] and a = 1
name = "x" # not = this

[data]
files = [
  "a.csv", # one
  "b = [", # two
]
label = \"\"\"
two
lines\"\"\"
split.by = "hash"
[ training . "early_stop" ]
after_rises = 3
[checkpoint]
both = { every_steps = 1, keep = 2 }
"""
    assert config_file.key_lines(text) == {
        ("name",): 2,
        ("data",): 4,
        ("data", "files"): 5,
        ("data", "label"): 9,
        ("data", "split", "by"): 12,
        ("training", "early_stop"): 13,
        ("training", "early_stop", "after_rises"): 14,
        ("checkpoint",): 15,
        ("checkpoint", "both", "every_steps"): 16,
        ("checkpoint", "both", "keep"): 16,
    }


@settings(max_examples=50)
@given(st.text(st.sampled_from(list('ab="[]{}\n#.,1 ')), max_size=40))
def test_the_line_scan_never_fails_whatever_the_text_is(text: str):
    for line in config_file.key_lines(text).values():
        assert 1 <= line <= text.count("\n") + 1


def test_a_variable_of_the_environment_is_read_and_nothing_else_is_expanded(written, monkeypatch):
    monkeypatch.setenv("HERE", "/data")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("AWAY", raising=False)
    path = written(
        'a = "${HERE}/x"\nb = "${AWAY:-y z}"\nc = "$HERE ~ ${1} `id` $(id)"\n'
        'd = ["${HERE}", { e = "${EMPTY:-z}${EMPTY}" }]\n# ${UNDEFINED_IN_A_COMMENT}\n'
    )
    assert config_file.read(path).tables == {
        "a": "/data/x",
        "b": "y z",
        "c": "$HERE ~ ${1} `id` $(id)",
        "d": ["/data", {"e": "z"}],
    }


def test_what_a_variable_holds_is_not_expanded_again(written, monkeypatch):
    monkeypatch.setenv("HERE", "${THERE}")
    assert config_file.read(written('a = "${HERE}"')).tables == {"a": "${THERE}"}


def test_a_variable_that_is_not_defined_is_refused_with_its_key(written, monkeypatch):
    monkeypatch.delenv("AWAY", raising=False)
    path = written('[tracking]\nuri = "http://${AWAY}"\n')
    with pytest.raises(SettingError) as refused:
        config_file.read(path)
    assert refused.value.where == f"{path}:2: tracking.uri"
    assert "the environment has no AWAY" in str(refused.value)
    assert "${AWAY:-default}" in refused.value.right


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("training.epochs=4", {"training": {"epochs": "4"}}),
        ('data.ignore=["a", "b"]', {"data": {"ignore": ["a", "b"]}}),
        ("data.label=no", {"data": {"label": "no"}}),
        ('data.label="1"', {"data": {"label": "1"}}),
        ("data.files=a=b.csv", {"data": {"files": "a=b.csv"}}),
        ("data.label=", {"data": {"label": ""}}),
        ("data.label=1\nb = 2", {"data": {"label": "1\nb = 2"}}),
        ("training.early_stop={after_rises = 2}", {"training": {"early_stop": {"after_rises": 2}}}),
    ],
)
def test_set_takes_a_dotted_key_and_a_toml_value_or_text(written, argument, expected):
    source = config_file.read(written(""), [argument])
    assert source.tables == expected


def test_set_comes_after_the_file_and_the_last_one_holds(written):
    path = written('[data]\nlabel = "a"\nfiles = "f"\n')
    source = config_file.read(path, ["data.label=b", "data.label=c"])
    assert source.tables == {"data": {"label": "c", "files": "f"}}
    assert source.where(("data", "label")) == "--set data.label"
    assert source.where(("data", "files")) == f"{path}:3: data.files"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("training.epochs", "has no value"),
        ("=3", "is no key"),
        ("a b=3", "is no key"),
        ("name.x=3", "name is no table, so it has no keys"),
    ],
)
def test_a_set_that_cannot_be_is_refused_and_named(written, argument, said):
    with pytest.raises(SettingError, match=said) as refused:
        config_file.read(written('name = "x"'), [argument])
    assert refused.value.where == f"--set {argument}"


def test_a_key_that_stands_twice_is_refused_with_both_lines(written):
    path = written("[training]\nepochs = 1\nseed = 2\nepochs = 9\n")
    with pytest.raises(SettingError) as refused:
        config_file.read(path)
    assert str(refused.value) == (
        f"{path}:4: training.epochs: stands twice; keep this one or the one on line 2"
    )


def test_a_table_that_stands_twice_is_refused_with_both_lines(written):
    path = written("[training]\nepochs = 1\n[model]\n[training]\nseed = 2\n")
    with pytest.raises(SettingError, match=r":4: training: stands twice; keep .* line 1"):
        config_file.read(path)


@pytest.mark.parametrize(
    ("text", "line", "holds"),
    [
        ("a = 1\nb = no\n", 2, "`b = no`"),
        ("a = 1\n\nlearning_rate: 1e-3\n", 3, "`learning_rate: 1e-3`"),
        ("[a\n", 1, "`[a`"),
        # What has no end is named by where it begins, not by the blank line at the text's end.
        ("# one\n\na = [1,\n\n\n", 3, "`a = [1,`"),
        ('b = 1\n\n# two\na = """\nx\n\n', 4, '`a = """`'),
        ("a = ", 1, "`a =`"),
    ],
)
def test_text_that_is_no_toml_is_refused_with_its_line_and_what_stands_there(
    written, text, line, holds
):
    path = written(text)
    with pytest.raises(InputError, match=r"this is not TOML \([a-z]") as refused:
        config_file.read(path)
    assert (refused.value.where, refused.value.holds) == (f"{path}:{line}", holds)


def test_a_byte_order_mark_and_the_line_ends_of_windows_are_read(written):
    path = written("\ufeffa = 1\r\n[b]\r\nc = 2\r\n")
    source = config_file.read(path)
    assert source.tables == {"a": 1, "b": {"c": 2}}
    assert source.lines["b", "c"] == 3


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_bytes(b'a = 1\nb = "\xe9"\n')
    with pytest.raises(InputError, match="is not UTF-8") as refused:
        config_file.read(str(path))
    assert refused.value.where == f"{path}:2"


def test_a_missing_file_and_a_folder_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"no such file; .*headrace example") as refused:
        config_file.read(str(tmp_path / "away.toml"))
    assert refused.value.exit_code == 2
    with pytest.raises(InputError, match=r"is a folder.*pipeline\.toml"):
        config_file.read(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.precison", "training.precision"),
        ("epochs", "training.epochs"),
        ("training.learning_rates", "training.learning_rate"),
        ("trainning", "training"),
        ("zzzz", ""),
    ],
)
def test_the_nearest_key_is_the_one_that_was_meant(key, meant):
    keys = ["name", "training", "training.epochs", "training.precision", "training.learning_rate"]
    assert config_file.nearest(key, keys) == meant


def test_parts_of_a_key_that_need_quotes_get_them():
    assert config_file.dotted(("validation", "rules", "a b", 0)) == 'validation.rules."a b"[0]'


def test_a_misspelt_table_of_set_is_told_of_where_it_was_written(tmp_path):
    from pipeline import config
    from trainer.errors import SettingError

    path = tmp_path / "pipeline.toml"
    path.write_text('[data]\nfiles = "a.csv"\nlabel = "y"\n')
    with pytest.raises(SettingError, match=r"^--set trainig\.epochs: .*nearest key is training"):
        config.load(path, ["trainig.epochs=3"])
