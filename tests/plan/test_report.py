"""Output: tables, JSON, CSV, Parquet, and the HTML report in a real headless browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import COLUMNS, Answer, Rows, joined
from engine.plan.answers.diff import difference
from engine.plan.answers.explain import SENTENCES, explain
from engine.plan.answers.output import format_for, print_table, provenance, write_answer
from engine.plan.answers.readable import readable
from engine.plan.questions import QUESTIONS
from engine.plan.questions.evict import EvictParameters
from engine.plan.questions.image_gc import ImageGCParameters
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.report import render, write_report
from engine.plan.report.plots import plots
from engine.plan.report.sentence import sentence
from engine.plan.report.svg import dumbbells, ticks
from tests.waiting import PATIENCE

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def answer(cluster) -> Answer:
    return preempt(cluster, PreemptParameters(critical=True, requests={"cpu": 2}, name="<agent> & co"))


@pytest.fixture(scope="module")
def source(cluster) -> dict:
    return provenance(
        cluster.meta, {"question": "preempt", "parameters": {"critical": True, "name": "<agent> & co"}}
    )


def test_every_format_holds_every_row(answer, source, tmp_path):
    for name in ("a.json", "a.csv", "a.parquet"):
        write_answer(answer, source, format_for(name, ""), str(tmp_path / name), 10)
    rows = answer.table.to_pylist()
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["rows"] == rows
    assert document["provenance"]["input_hash"] == source["input_hash"]
    with (tmp_path / "a.csv").open() as file:
        assert [row | {"amount": int(row["amount"])} for row in csv.DictReader(file)] == rows
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == rows
    assert json.loads(table.schema.metadata[b"kubengine.provenance"])["numpy"] == source["numpy"]
    assert tuple(table.column_names) == COLUMNS


def test_a_suffix_without_a_format_is_refused():
    with pytest.raises(InvalidInput, match=r"ends with none of"):
        format_for("answer.doc", "")


def test_the_terminal_table_shows_totals_and_rows(answer):
    text = io.StringIO()
    print_table(answer, Console(file=text, width=200), 5)
    assert "fits" in text.getvalue()
    assert f"rows ({len(answer):,})" in text.getvalue()
    assert "<agent> & co" in text.getvalue()


def test_every_decision_has_a_description(answer):
    lines = list(explain(answer, 10**6))
    assert len(lines) >= len(answer)
    assert not any("{" in line for line in lines)
    assert set(answer.table["decision"].to_pylist()) <= SENTENCES.keys()


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1536, "bytes", "1.5 KiB"),
        (-(2**30), "bytes", "-1.0 GiB"),
        (1200, "pods", "1,200 pods"),
    ],
)
def test_amounts_are_readable(amount, unit, text):
    assert readable(amount, unit) == text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0), (0.1, 0.3), (-5, 1e12), (3, 3.0001)])
@pytest.mark.parametrize("unit", ["", "bytes"])
def test_axes_reach_over_the_data(low, high, unit):
    marks = ticks(low, high, unit=unit)
    assert marks[0] <= low + 1e-9
    assert marks[-1] >= high - 1e-9
    assert 2 <= len(marks) <= 14


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.references: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.references += [v for k, v in attrs if k in ("src", "href") and v]


def test_the_page_is_self_contained_and_escaped(answer, source):
    page = render(answer, source)
    tags = _Tags()
    tags.feed(page)
    assert tags.references == []
    assert "url(" not in page
    assert "@import" not in page
    assert tags.counts["svg"] >= 4
    assert tags.counts["table"] == 2
    assert "<agent>" not in page
    assert "&lt;agent&gt; &amp; co" in page
    for name in ("input_hash", "numpy"):
        assert name.replace("_", " ") in page


def test_an_empty_answer_still_makes_a_page(source):
    assert "Provenance" in render(Rows([]).answer(), source)


ASKED = {
    "preempt": PreemptParameters(critical=True, requests={"cpu": 2, "memory": "2Gi"}),
    "evict": EvictParameters(threshold="60%", soft="70%"),
    "image-gc": ImageGCParameters(high=60, low=40),
}


@pytest.mark.parametrize(("name", "resources"), [
    ("preempt", {"cpu", "memory"}), ("evict", {"memory", "allocatableMemory"}), ("image-gc", {"imagefs"}),
])  # fmt: skip
def test_usage_before_and_after_is_shown_and_adds_up(cluster, name, resources):
    answer = QUESTIONS[name].ask(cluster, ASKED[name])
    rows = answer.table.to_pylist()
    used = {side: {} for side in ("used-before", "used-after")}
    for row in rows:
        if row["decision"] in used:
            used[row["decision"]][row["node"], row["object"]] = row["amount"]
    freed: Counter = Counter()
    for row in rows:
        if row["decision"] == "frees":
            freed[row["node"], row["object"]] += row["amount"]
        elif row["decision"] in ("evict", "remove"):
            for resource in resources:
                freed[row["node"], resource] += row["amount"]
    taken = {"cpu": 2000, "memory": 2 * 2**30} if name == "preempt" else {}
    assert {resource for _, resource in used["used-before"]} == resources
    assert used["used-before"].keys() == used["used-after"].keys() == freed.keys()
    for (node, resource), before in used["used-before"].items():
        after = before - freed[node, resource] + taken.get(resource, 0)
        assert used["used-after"][node, resource] == after
    page = render(answer, provenance(cluster.meta, {"question": name}))
    for resource in resources:
        assert f"{resource}: used before and after" in page
    assert page.count('class="drop"') == len(used["used-before"])


@pytest.mark.skipif(BROWSER is None, reason="needs chromium on the PATH (Debian: chromium)")
def test_the_page_renders_in_a_browser(answer, source, tmp_path):
    page = tmp_path / "report.html"
    write_report(answer, source, page)
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--window-size=1300,2000",
    ]  # fmt: skip
    dumped = subprocess.run(
        [str(BROWSER), *options, "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert dumped.stdout.count("<svg") >= 4
    assert "preempt" in dumped.stdout
    assert "cpu: used before and after" in dumped.stdout
    assert dumped.stdout.count('<line class="drop"') > 2
    assert not re.search(r"CONSOLE.*(Refused|Uncaught|error)", dumped.stderr)
    picture = tmp_path / "report.png"
    subprocess.run(
        [str(BROWSER), *options, "--hide-scrollbars", f"--screenshot={picture}", page.as_uri()],
        capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 30_000


def scripted(
    answer: Answer, source: dict, directory: Path, script: str = "", fragment: str = "", width: int = 1300
) -> str:
    """Return the page's elements after a script has used it, as a browser has them."""
    page = directory / "used.html"
    page.write_text(render(answer, source).replace("</body>", f"<script>{script}</script></body>"))
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={directory / 'profile'}", "--virtual-time-budget=2000",
        f"--window-size={width},2000",
    ]  # fmt: skip
    done = subprocess.run(
        [str(BROWSER), *options, "--enable-logging=stderr", "--dump-dom", f"{page.as_uri()}{fragment}"],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert not re.search(r"CONSOLE.*(Refused|Uncaught|error)", done.stderr)
    return done.stdout


needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium on the PATH (Debian: chromium)")


def shown_rows(page: str) -> list[list[str]]:
    body = re.search(r'id="rows".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body
    lines = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)
    return [
        [re.sub(r"<[^>]*>", "", one) for one in re.findall(r"<td[^>]*>(.*?)</td>", line)] for line in lines
    ]


@needs_browser
def test_rows_are_searched_sorted_and_shown_in_steps(answer, source, tmp_path):
    listed = answer.table.to_pylist()
    page = scripted(answer, source, tmp_path)
    assert len(shown_rows(page)) == min(200, len(listed))
    script = """
    const box = document.getElementById("filter");
    box.value = "VICTIM node-00003"; box.oninput();
    [...document.querySelectorAll("#rows th")].find((head) => head.textContent === "amount").click();
    """
    expected = sorted(
        row["amount"] for row in listed if row["decision"] == "victim" and row["node"] == "node-00003"
    )
    victims = shown_rows(scripted(answer, source, tmp_path, script))
    assert [row[1:3] for row in victims] == [["node-00003", "victim"]] * len(expected)
    assert [row[-1] for row in victims] == [readable(amount, "milli-CPU") for amount in expected]


@needs_browser
def test_a_card_leads_to_the_rows_of_its_decision(answer, source, tmp_path):
    script = """document.querySelector('[data-decision="preempt"]').click();"""
    found = shown_rows(scripted(answer, source, tmp_path, script))
    assert {row[2] for row in found} == {"preempt"}
    assert len(found) == answer.table["decision"].to_pylist().count("preempt")


@pytest.fixture(scope="module")
def compared(cluster) -> Answer:
    """Return the difference between the answers to two sizes of a preempting pod."""
    asked = [PreemptParameters(critical=True, requests={"cpu": amount}) for amount in (1, 2)]
    return difference(*(preempt(cluster, one) for one in asked))


def test_two_answers_are_shown_side_by_side(compared, source):
    (pair,) = compared.compared
    asked = {"a": {"requests": "cpu=1"}, "b": {"requests": "cpu=2"}}
    page = render(compared, source | {"asked": asked})
    (section,) = re.findall(r"<h2>Side by side</h2>(.*?)</table>", page)
    assert all(sentence(answer.table) in section for answer in (pair.a, pair.b))
    assert all(text in section for text in ("<h3>A</h3>", "<h3>B</h3>", "requests cpu=1", "requests cpu=2"))
    (victims,) = re.findall(r'data-words=":victim".*?</tr>', section)
    counts = [answer.table["decision"].to_pylist().count("victim") for answer in (pair.a, pair.b)]
    assert counts[0] < counts[1]
    assert re.findall(r'"amount">(\d+)<', victims) == [str(count) for count in counts]
    assert f'title="victim, B: {counts[1]}"' in page


@needs_browser
def test_a_decision_of_both_sides_leads_to_the_rows_that_differ(compared, source, tmp_path):
    script = """document.querySelector('[data-words=":victim"]').click();"""
    found = shown_rows(scripted(compared, source, tmp_path, script))
    expected = [name for name in compared.table["decision"].to_pylist() if name.endswith(":victim")]
    assert [row[2] for row in found] == expected


@needs_browser
def test_nothing_but_tables_is_wider_than_a_phone(compared, source, tmp_path):
    script = """
    const wide = [...document.querySelectorAll("body, figure, .side, .number")];
    document.title = "wide " + wide.filter((one) => one.scrollWidth > one.clientWidth + 1).length;
    """
    assert "<title>wide 0</title>" in scripted(compared, source, tmp_path, script, width=390)


@needs_browser
def test_the_address_of_a_node_shows_it_before_and_after(answer, source, tmp_path):
    (name, *_) = [row["node"] for row in answer.table.to_pylist() if row["decision"] == "used-before"]
    page = scripted(answer, source, tmp_path, fragment=f"#node={name}")
    panel = re.search(r'<section id="node">(.*?)</section>', page, re.DOTALL)
    assert panel
    assert f"<h2>{name}</h2>" in panel[1]
    used = {row["decision"]: row for row in rows_of_node(answer, name) if row["object"] == "cpu"}
    for side in ("before", "after"):
        amount = readable(used[f"used-{side}"]["amount"], "milli-CPU")
        assert f"{side} {amount}" in panel[1]


def rows_of_node(answer: Answer, node: str) -> list[dict]:
    return [row for row in answer.table.to_pylist() if row["node"] == node]


@needs_browser
def test_the_map_has_a_square_for_each_node(answer, source, tmp_path):
    page = scripted(answer, source, tmp_path)
    assert re.search(r'id="scale">\d+ of 24 nodes; least .*, median .*, most ', page)
    assert "canvas" in page


def test_a_report_of_many_nodes_stays_below_a_megabyte(source):
    rows = Rows(
        [f"ip-10-0-{number // 250}-{number % 250}.eu-central-1.compute.internal" for number in range(10_000)]
    )
    for number in range(10_000):
        for decision in ("evict", "relieved", "frees"):
            rows.add(
                number,
                decision,
                f"shop/web-{number:010d}",
                f"because {number % 97}",
                number * 1_000_003,
                "bytes",
            )
    page = render(rows.answer(), source)
    assert len(page.encode()) < 1_000_000
    data = json.loads(re.findall(r'id="map-data">(.*?)</script>', page)[0])
    assert len(data["nodes"]) == 10_000
    assert f"{data['start']}{data['nodes'][77]}{data['end']}" == rows.node_names[77]
    assert "the first " in page


def test_embedded_texts_end_no_element(source):
    rows = Rows(["n0"])
    rows.add(0, "evict", "</script><script>alert(1)</script>", "<b>", 1, "pods")
    page = render(rows.answer(), source)
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    data = json.loads(re.findall(r'id="row-data">(.*?)</script>', page)[0])
    assert data["object"]["texts"] == ["</script><script>alert(1)</script>"]


def rows_of(*rows: tuple[int, str, int, str]) -> Answer:
    """Return an answer with rows of (node, decision, amount, unit)."""
    answer = Rows([f"n{number}" for number in range(9)])
    for node, decision, amount, unit in rows:
        answer.add(node, decision, "", "", amount, unit)
    return answer.answer()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(0, "fits", 0, "pods"), (1, "preempt", 2, "pods"), (1, "victim", 5, "milli-CPU")],
         "It fits on 1 node; on 1 node it preempts 2 pods."),
        ([(0, "move", 1, "pods"), (0, "drained", 1, "pods")], "1 pod moves; 1 node can be drained."),
        ([*[(0, "move", 1, "pods")] * 2, (0, "remains", 1, "pods"), (0, "not-drained", 1, "pods")],
         "2 pods move; 1 pod remains; 1 node cannot be drained."),
        ([(0, "calm", 5, "bytes"), (1, "calm", 5, "bytes")], "2 nodes stay calm."),
        ([(0, "cpu.weight", 5, "weight")], ""),
    ],
)  # fmt: skip
def test_an_answer_is_summarized_in_a_sentence(rows, text):
    assert sentence(rows_of(*rows).table) == text


def test_outliers_do_not_flatten_a_chart():
    usual = [(f"n{number}", 100.0 + number, 90.0) for number in range(200)]
    drawn = dumbbells([*usual, ("huge", 1e6, 1e6)], ("before", "after"), "", "cpu used")
    assert "huge" not in drawn
    assert "80 of 200, evenly chosen" in drawn
    assert "; 1 above " in drawn
    assert "1M" not in drawn


@pytest.mark.parametrize(("largest", "drawn"), [(400.0, True), (1e6, False)])
def test_one_of_few_nodes_is_left_out_only_if_it_is_far_beyond_them(largest, drawn):
    few = [(f"n{number}", 100.0, 90.0) for number in range(4)]
    chart = dumbbells([*few, ("large", largest, largest)], ("before", "after"), "", "cpu used")
    assert ("large" in chart) is drawn
    assert ("; 1 above 1k not shown" in chart) is not drawn


def test_an_explanation_says_how_many_rows_it_leaves_out():
    answer = rows_of(*((0, "evict", 5, "bytes") for _ in range(3)))
    assert [line for line in explain(answer, 2) if "more row" in line] == [
        "… 1 more row: --limit, or -o FILE.csv"
    ]
    assert not [line for line in explain(answer, 3) if "more row" in line]


@pytest.mark.parametrize(("rows", "drawn"), [([0, 1], False), ([0, 1, 1], True)])
def test_equal_counts_per_node_are_no_chart(rows, drawn):
    table = rows_of(*((node, "evict", 5, "bytes") for node in rows)).table
    found = [(plot.title, plot.drawing) for plot in plots(table)]
    assert ("evict: how many per node" in [title for title, _ in found]) is drawn
    assert ("1 rows" in found[0][1]) is False


def test_a_sweep_has_a_heading_for_each_point_in_80_columns():
    points = [f"agent[requests.cpu={number},policy=kubelet]" for number in (0.5, 1, 1.5)]
    answer = joined(rows_of((0, "fits", 1, "pods")).named(point) for point in points)
    file = io.StringIO()
    print_table(answer, Console(file=file, width=80), 20)
    lines = file.getvalue().splitlines()
    for point in points:
        assert f"decisions of {point}" in lines
        assert f"rows of {point}" in lines
    assert max(map(len, lines)) <= 80
    assert "1 pod " in file.getvalue()
