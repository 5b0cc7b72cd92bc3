"""Two agents compared by the JUnit reports of the kubelet's own suite."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from click.testing import CliRunner

from engine.api.errors import InvalidInput
from engine.bench import suite
from engine.bench.compatibility import BEGIN, END, split
from engine.bench.suite import SpecOutcome, SuiteResult, read_reports
from engine.cli.bench import command

PROBE = "[sig-node] Probing container should be restarted [NodeConformance] [sig-node, NodeConformance]"
HOOK = "[sig-node] Container Lifecycle Hook when a pod has hooks should run poststart [sig-node]"
SERIAL = "[sig-node] Restart [Serial] Kubelet should correct [sig-node, Serial]"
VOLUME = "[sig-storage] Secrets should be consumable [sig-storage]"


def case(name: str, status: str = "passed", verdict: str = "", mark: str = "[It] ") -> str:
    return f'<testcase name={quoteattr(mark + name)} classname="Suite" status="{status}">{verdict}</testcase>'


def passed(name: str) -> str:
    return case(name, verdict="<system-err>&gt; Enter [It]</system-err>")


def failed(name: str, message: str = "Timed out.\nExpected\n    more") -> str:
    verdict = f"<failure message={quoteattr(message)} type='failed'>trace</failure>"
    return case(name, "failed", verdict)


def skipped(name: str, message: str = "skipped") -> str:
    return case(name, "skipped", f"<skipped message={quoteattr(message)}></skipped>")


def report(path: Path, *cases: str) -> Path:
    setup = case("", mark="[SynchronizedBeforeSuite]")
    body = f'<testsuites><testsuite name="E2eNode Suite">{setup}{"".join(cases)}</testsuite></testsuites>'
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{body}')
    return path


def test_a_report_has_the_result_of_each_spec(tmp_path: Path) -> None:
    path = report(
        tmp_path / "r.xml",
        passed(PROBE), failed(HOOK), skipped(SERIAL), skipped(VOLUME, "skipped - needs two nodes"),
    )  # fmt: skip
    assert read_reports([path]) == {
        PROBE: SpecOutcome(SuiteResult.PASSED),
        HOOK: SpecOutcome(SuiteResult.FAILED, "Timed out."),
        SERIAL: SpecOutcome(SuiteResult.NOT_RUN),
        VOLUME: SpecOutcome(SuiteResult.SKIPPED, "needs two nodes"),
    }


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ("panicked", SuiteResult.FAILED),
        ("timedout", SuiteResult.FAILED),
        ("interrupted", SuiteResult.NOT_RUN),
        ("aborted", SuiteResult.NOT_RUN),
        ("pending", SuiteResult.NOT_RUN),
    ],
)
def test_only_finished_runs_count(tmp_path: Path, status: str, result: SuiteResult) -> None:
    error = '<error message="it broke"></error>'
    assert read_reports([report(tmp_path / "r.xml", case(PROBE, status, error))])[PROBE].result is result


def test_a_spec_that_the_end_of_the_whole_run_cut_off_was_not_run(tmp_path: Path) -> None:
    message = "A suite timeout occurred and then the following failure was recorded"
    cut = case(PROBE, "timedout", f"<failure message={quoteattr(message)}></failure>")
    assert read_reports([report(tmp_path / "r.xml", cut)])[PROBE].result is SuiteResult.NOT_RUN


def test_the_last_report_in_which_a_spec_ran_counts(tmp_path: Path) -> None:
    first = report(tmp_path / "1.xml", failed(PROBE), passed(HOOK))
    second = report(tmp_path / "2.xml", passed(PROBE), skipped(HOOK))
    outcomes = read_reports([first, second])
    assert outcomes[PROBE] == SpecOutcome(SuiteResult.PASSED, failed_before=1)
    assert outcomes[HOOK] == SpecOutcome(SuiteResult.PASSED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "invalid XML at line 1"),
        (b"<testsuites><testcase", "invalid XML at line 1"),
        (b"\x00\xff\xfe", "invalid XML"),
        (b"<testsuites></testsuites>", "contains no spec"),
        (b'<t><testcase name="test_x" status="passed"/></t>', "contains no spec"),
        (b'<t><testcase name="[It] x" status="great"/></t>', "unknown status 'great'"),
        (b'<!DOCTYPE t [<!ENTITY a "a"><!ENTITY b "&a;&a;">]><t>&b;</t>', "a document type is declared"),
        (b"<t>" * 100_000, "nested deeper"),
        (b'<t><testcase name="[It] %s"/></t>' % (b"x" * 5000), "name is longer"),
    ],
)
def test_a_file_that_is_no_report_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.xml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as raised:
        read_reports([path])
    assert raised.value.subject == str(path)


def test_a_report_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "FILE_LIMIT", 1 << 16)
    monkeypatch.setattr(suite, "SPEC_LIMIT", 2)
    long = report(tmp_path / "long.xml", failed(PROBE, "x" * (1 << 17)))
    with pytest.raises(InvalidInput, match="longer than"):
        read_reports([long])
    many = report(tmp_path / "many.xml", passed(PROBE), passed(HOOK), passed(SERIAL))
    with pytest.raises(InvalidInput, match="more than 2 specs"):
        read_reports([many])


@pytest.mark.parametrize(
    ("name", "group", "text"),
    [
        (PROBE, "Probing container", "should be restarted"),
        (HOOK, "Container Lifecycle Hook", "when a pod has hooks should run poststart"),
        (SERIAL, "Restart", "Kubelet should correct"),
        ("[sig-node] [A] [B] Device Failures: [C] will end [sig-node]", "Device Failures", "will end"),
        ("[sig-node] MirrorPod (Pod Generation) mirror pod [x]", "MirrorPod (Pod Generation)", "mirror pod"),
        ("[sig-node] One Two Three Four five six [x]", "One Two Three Four", "five six"),
        ("should", "should", ""),
        ("", "", ""),
    ],
)
def test_a_spec_belongs_to_the_group_of_its_title(name: str, group: str, text: str) -> None:
    assert split(name) == (group, text)


def test_the_command_writes_totals_differences_and_specs_into_a_document(tmp_path: Path) -> None:
    kubelet = report(tmp_path / "kubelet.xml", passed(PROBE), passed(HOOK), failed(SERIAL), skipped(VOLUME))
    ours = report(
        tmp_path / "ours.xml", passed(PROBE), failed(HOOK, "a|b `c`"), passed(SERIAL), skipped(VOLUME)
    )
    document = tmp_path / "page.md"
    document.write_text(f"# Page\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    arguments = ["suite", "--kubelet", str(kubelet), "--kubengine", str(ours)]
    done = CliRunner().invoke(command, [*arguments, "--into", str(document)], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "")
    page = document.read_text()
    assert page.startswith(f"# Page\n\n{BEGIN}\n| group |")
    assert page.endswith(f"\n{END}\n\nMore.\n")
    assert "old" not in page
    assert "| **all** | 4 | 3 | 2 | 2 | 1 | 1 |" in page
    assert "In no report of either agent, with their number of specs: Secrets (1)." in page
    first, _, rest = page.partition("### Fail with the kubelet, pass here")
    assert r"when a pod has hooks should run poststart (a\|b \`c\`)" in first
    assert "Restart: Kubelet should correct (Timed out.)" in rest
    assert "| should be restarted | passed | passed |" in rest
    assert "| when a pod has hooks should run poststart | passed | **failed** |" in rest
    assert CliRunner().invoke(command, arguments).output in page


def test_a_document_without_markers_is_unchanged(tmp_path: Path) -> None:
    junit = report(tmp_path / "r.xml", passed(PROBE))
    document = tmp_path / "page.md"
    document.write_text("# Page\n")
    with pytest.raises(InvalidInput, match=r"page\.md: expected the lines"):
        CliRunner().invoke(
            command,
            ["suite", "--kubelet", str(junit), "--kubengine", str(junit), "--into", str(document)],
            catch_exceptions=False,
        )
    assert document.read_text() == "# Page\n"


NETWORK = "[sig-network] DNS should provide DNS for services [Conformance] [sig-network, Conformance]"
TAINTS = "[sig-node] NoExecuteTaintManager [Serial] evicts pods [Conformance] [sig-node, Serial, Conformance]"
LOGS = "[sig-cli] Kubectl logs should filter [Conformance] [sig-cli, Conformance]"


def test_conformance_counts_specs_by_sig_and_lists_failures(tmp_path: Path) -> None:
    ours = report(tmp_path / "ours.xml", failed(NETWORK, "a|b\nmore"), passed(LOGS), passed(PROBE))
    rest = report(tmp_path / "rest.xml", failed(NETWORK, "a|b"), skipped(TAINTS))
    kubelet = report(tmp_path / "kubelet.xml", passed(NETWORK))
    arguments = ["suite", "--conformance", "--kubengine", str(ours), "--kubengine", str(rest)]
    alone = CliRunner().invoke(command, arguments, catch_exceptions=False).output
    assert "| sig-cli | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in alone
    assert "| sig-network | 1 | 0 | 1 | 0 | 0 | 0 | 0 |" in alone
    assert "| sig-node | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in alone
    assert "| **all** | 3 | 1 | 1 | 0 | 1 | 0 | 0 |" in alone
    assert r"- sig-network: DNS should provide DNS for services (a\|b); kubelet: not run" in alone
    both = CliRunner().invoke(command, [*arguments, "--kubelet", str(kubelet)], catch_exceptions=False).output
    assert "| sig-network | 1 | 0 | 1 | 0 | 0 | 1 | 0 |" in both
    assert "kubelet: passed" in both


def test_other_specs_that_ran_are_counted_apart(tmp_path: Path) -> None:
    ours = report(
        tmp_path / "ours.xml", passed(LOGS), failed(HOOK), skipped(SERIAL), skipped(VOLUME, "no disk")
    )
    kubelet = report(tmp_path / "kubelet.xml", passed(HOOK), skipped(SERIAL))
    arguments = ["suite", "--conformance", "--kubengine", str(ours), "--kubelet", str(kubelet)]
    text = CliRunner().invoke(command, arguments, catch_exceptions=False).output
    marked, others = text.split("### Beyond `[Conformance]`")
    assert "| **all** | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in marked
    assert "| sig-node | 1 | 0 | 1 | 0 | 0 | 1 | 0 |" in others
    assert "| sig-storage | 1 | 0 | 0 | 1 | 0 | 0 | 0 |" in others
    assert "| **all** | 2 | 0 | 1 | 1 | 0 | 1 | 0 |" in others
    assert "run poststart (Timed out.); kubelet: passed" in others


def test_conformance_without_a_failure_says_so(tmp_path: Path) -> None:
    ours = report(tmp_path / "ours.xml", passed(LOGS))
    done = CliRunner().invoke(command, ["suite", "--conformance", "--kubengine", str(ours)])
    assert done.output.endswith("### Fail with Kubengine\n\nNone.\n")


def test_a_comparison_by_group_needs_both_agents(tmp_path: Path) -> None:
    ours = report(tmp_path / "ours.xml", passed(PROBE))
    done = CliRunner().invoke(command, ["suite", "--kubengine", str(ours)])
    assert (done.exit_code, "--kubelet" in done.output) == (2, True)
