import json

from components import fingerprint
from pipeline import config, definition


def load(tmp_path, *sets, text=""):
    path = tmp_path / "pipeline.toml"
    path.write_text('[data]\nfiles = "a.csv"\nlabel = "y"\n' + text)
    return config.load(path, list(sets))


def parts(loaded, digests=None):
    flat = loaded.flat()
    return {
        node.id: fingerprint.digest(definition.own_part(node, loaded, digests or {}, flat))
        for node in definition.NODES
    }


def changed(one, other):
    return {name for name in one if one[name] != other[name]}


def test_every_input_comes_from_a_node_before_it():
    seen = set()
    for node in definition.NODES:
        assert set(node.upstream) <= seen
        seen.add(node.id)


def test_nothing_trains_before_the_gate_has_passed():
    (trainer,) = [node for node in definition.NODES if node.id == "Trainer"]
    assert "DataGate" in trainer.upstream


def test_a_setting_touches_the_nodes_that_it_concerns_and_no_other(tmp_path):
    before = parts(load(tmp_path))
    for setting, nodes in {
        "training.epochs=9": {"Trainer"},
        "model.width=128": {"Trainer"},
        "data.split.eval=0.3": {"ExampleGen"},
        'data.label="z"': {"ExampleGen", "SchemaGen", "DataGate", "Trainer"},
        'data.ignore=["q"]': {"DataGate", "Trainer"},
        'validation.on_anomaly="warn"': {"DataGate"},
        "training.max_restarts=9": set(),
        "checkpoint.keep=9": set(),
        'tracking.uri="http://127.0.0.1:1"': set(),
    }.items():
        assert changed(before, parts(load(tmp_path, setting))) == nodes, setting


def test_other_data_touch_example_gen(tmp_path):
    loaded = load(tmp_path)
    assert changed(parts(loaded, {"a.csv": "1"}), parts(loaded, {"a.csv": "2"})) == {"ExampleGen"}


def test_another_content_of_the_schema_file_touches_schema_gen(tmp_path):
    schema = tmp_path / "s.pbtxt"
    schema.write_text("")
    loaded = load(tmp_path, text='[validation]\nschema = "s.pbtxt"\n')
    before = parts(loaded)
    schema.write_text("# reviewed\n")
    assert changed(before, parts(loaded)) == {"SchemaGen"}


def test_what_a_node_is_told_is_json(tmp_path):
    loaded = load(tmp_path)
    for node in definition.NODES:
        told = node.settings(loaded, ["/a.csv"])
        assert json.loads(json.dumps(told)) == told or node.id == "Trainer"
