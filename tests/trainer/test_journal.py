import json
import threading

from trainer import journal


def test_events_come_back_in_order_with_their_facts(tmp_path):
    path = tmp_path / "events.jsonl"
    journal.append(path, "node", id="Trainer", state="running")
    journal.append(path, "node", id="Trainer", state="done")
    events, _ = journal.read(path)
    assert [(one["event"], one["state"]) for one in events] == [
        ("node", "running"),
        ("node", "done"),
    ]
    assert events[0]["time"] <= events[1]["time"]


def test_reading_goes_on_where_it_stopped_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    journal.append(path, "a")
    _, offset = journal.read(path)
    with open(path, "a") as file:
        file.write('{"event": "b", "time": 1')
    assert journal.read(path, offset) == ([], offset)
    with open(path, "a") as file:
        file.write("}\n")
    events, _ = journal.read(path, offset)
    assert [one["event"] for one in events] == ["b"]


def test_numbers_that_are_not_finite_become_texts(tmp_path):
    path = tmp_path / "events.jsonl"
    journal.append(path, "x", loss=float("nan"), more={"inf": [float("inf")]})
    line = json.loads(path.read_text(), parse_constant=lambda name: 1 / 0)
    assert (line["loss"], line["more"]) == ("nan", {"inf": ["inf"]})


def test_lines_of_several_writers_never_mix(tmp_path):
    path = tmp_path / "events.jsonl"

    def write(name):
        for number in range(200):
            journal.append(path, name, number=number, text="x" * 500)

    threads = [threading.Thread(target=write, args=(str(one),)) for one in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    events, _ = journal.read(path)
    assert len(events) == 800
    for name in "0123":
        assert [one["number"] for one in events if one["event"] == name] == list(range(200))


def test_a_damaged_line_hides_no_other(tmp_path):
    path = tmp_path / "events.jsonl"
    journal.append(path, "a")
    with open(path, "a") as file:
        file.write('{"event": "b", "ti\n')
    journal.append(path, "c")
    assert [one["event"] for one in journal.read(path)[0]] == ["a", "c"]


def test_without_a_journal_nothing_is_kept(tmp_path):
    journal.append("", "a")
    assert journal.read(tmp_path / "none") == ([], 0)
