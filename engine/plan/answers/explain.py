"""Explain answers: one sentence per row."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.encoding.counts import counted
from engine.plan.answers.answer import Answer
from engine.plan.answers.readable import readable

SENTENCES = {
    "fits": "{object} fits on {node} without preemption",
    "preempt": "{object} on {node} is short ({reason}) and preempts {amount}",
    "impossible": "{object} cannot run on {node}: {reason} (short by {amount})",
    "used-before": "on {node}, {object} in use before: {amount}",
    "used-after": "on {node}, {object} in use after: {amount}",
    "waits": "on {node}, {reason} may last {amount}",
    "clears": "on {node}, {object} clears after {amount}",
    "victim": "on {node}, {object} is removed ({reason}) and frees {amount}",
    "step": "on {node}, step {amount} takes {object}: {reason}",
    "passed-over": "on {node}, {object} stays: {reason}",
    "frees": "on {node}, {amount} of {object} become free",
    "admits": "{object} fits on {node} {amount} times, then {reason}",
    "refuses": "{object} does not fit on {node}: {reason}",
    "evict": "on {node}, {object} is evicted ({reason}) and frees {amount}",
    "calm": "{node} is calm: {reason}, {amount} to spare",
    "relieved": "{node} is relieved: {reason}, {amount} available then",
    "stuck": "{node} stays under pressure: {reason}, {amount} missing",
    "reclaim": "on {node}, {reason} go first and free {amount}",
    "unknown": "{node} cannot be judged: {reason}",
    "collect": "image GC on {node} frees {amount} ({reason})",
    "idle": "image GC on {node} does nothing: {reason}",
    "short": "image GC on {node} is {amount} short ({reason})",
    "remove": "on {node}, image {object} is removed ({reason}) and frees {amount}",
    "used-again": "on {node}, image {object} would be pulled again: {reason}",
    "free": "{node} has {amount} free ({reason})",
    "allocates": "{node} allocates {object} {amount} ({reason})",
    "tainted": "{node} has {amount} that would be tainted ({reason})",
    "taint-evicts": "on {node}, {object} is evicted: it {reason}",
    "fragmented": "{node} cannot give {object}: {reason}",
    "full": "{node} cannot give {object}: {reason}",
    "takes": "{node} takes {amount} like {object} ({reason})",
    "misaligned": "{node} would take {amount} more like {object} on better placed CPUs: {reason}",
    "lacks": "{node} has too little for {amount} like {object}: {reason}",
    "move": "{object} moves from {node} {reason}",
    "stays": "{object} stays on {node}: {reason}",
    "lowers": "{object} requests less: {reason}",
    "raises": "{object} requests more: {reason}",
    "keeps": "{object} keeps its request: {reason}",
    "oom-recorded": "{object}: {reason}",
    "removable": "{node} is not needed {reason} ({amount} move)",
    "needed": "{node} is needed: {reason}",
    "pressure": "{node} is short of memory {amount}: {reason}",
    "oom-kill": "on {node}, {object} runs out of memory {amount}: {reason}",
    "throttle": "on {node}, {object} is throttled {amount}: {reason}",
    "squeeze": "on {node}, {object} lacks {amount}: {reason}",
    "remains": "{object} remains on {node}: {reason}",
    "lost": "{object} of {node} is lost: it {reason}",
    "displaced": "{object} of {node} is preempted and gets no node: {reason}",
    "breaks-budget": "the budget {object} keeps {amount} on {node}: it {reason}",
    "paces": "the budget {object} makes the drain take {amount}: {reason}",
    "drained": "{node} can be drained: {reason} ({amount} move)",
    "not-drained": "{node} cannot be drained as asked: {reason}",
    "unverified": "{node}: {amount} would fit {reason}; other constraints are unknown",
    "same": "{node} decides as recorded: {reason} ({amount})",
    "differs": "{node} decides otherwise: {reason} ({amount} in all)",
    "gap": "the record of {node} lacks something: {reason}",
    "mismatch": "the replay of {node} differs from its record: {reason}",
    "spared": "on {node}, {object} goes on ({reason})",
    "admit": "on {node}, {object} is admitted ({reason})",
    "earlier": "on {node}, {object} goes {amount} earlier: {reason}",
    "later": "on {node}, {object} goes {amount} later: {reason}",
    "kept": "on {node}, the image {object} stays ({reason})",
    "restarts": "on {node}, {object} restarts at other times: {reason}",
    "affected": "{node} is affected: {reason}",
    "unaffected": "the pods of {node} are not affected: {reason}",
    "changes": "{node} changes {reason}",
    "falls-back": "{node} may fall back to a default that the file does not replace: {reason}",
    "refuses-to-start": "the kubelet of {node} does not start ({object}): {reason}",
    "refuse": "{object} is refused when the kubelet of {node} starts: {reason}",
    "restart": "every container of {object} on {node} restarts: {reason}",
    "limit": "{node} changes the {reason}",
    "resize": "{node} changes {reason} ({amount})",
    "places": "{amount} {reason} of {object} go to {node}",
    "no-place": "{amount} of {object} get no node: {reason}",
    "headroom": "{amount} more of {object} fit, {reason}",
    "survives": "if {object} fails, there is a place for {amount} {reason}",
    "loses": "if {object} fails, {amount} get no node: {reason}",
    "binds": "{object} would run on {node}: {reason}",
    "pending": "{object} is pending: {reason}",
    "option": "{object} could take pods with {amount} more: {reason}",
    "grow": "{object} grows by {amount} {reason}",
    "no-group": "no node group takes {object}: {reason}",
    "reserve": "{object} {amount}: {reason}",
    "max-pods": "{object} {amount}: {reason}",
    "under-reserved": "{node} reserves {amount} too little: {reason}",
    "reserved": "{node} reserves enough, with {amount} to spare: {reason}",
    "node-came": "{node} came {reason}",
    "node-went": "{node} went {reason}",
    "node-changed": "{node}: {object} {reason}",
    "workload-came": "{object} came: {reason}",
    "workload-went": "{object} went: {reason}",
    "workload-scaled": "{object} was scaled: {reason}",
    "pod-came": "{object} came {reason}",
    "pod-went": "{object} went {reason}",
    "pod-moved": "{object} moved {reason}",
    "pod-grew": "{object} requests more: {reason}",
    "pod-shrank": "{object} requests less: {reason}",
    "lint": "{node}: {reason} ({object}, {amount})",
}

IN_TIME = {
    "evict": "on {node}, {object} is evicted after {amount}: {reason}",
    "victim": "on {node}, {object} is preempted after {amount}: {reason}",
    "refuse": "on {node}, {object} is refused after {amount}: {reason}",
    "pressure": "on {node}, the conditions change after {amount}: {reason}",
    "resize": "on {node}, values of {object} change after {amount}: {reason}",
    "limit": "on {node}, {object} gets less memory after {amount}: {reason}",
    "throttle": "on {node}, {object} gets less CPU time after {amount}: {reason}",
    "collect": "on {node}, image GC frees another amount after {amount}: {reason}",
    "back-off": "on {node}, {object} waits another time after {amount}: {reason}",
    "restart": "on {node}, {object} restarts: {reason}",
    "start": "the kubelet of {node} does not start ({object}): {reason}",
}
"""Sentences of a replay, whose amounts are seconds since its beginning."""


def explain(answer: Answer, limit: int) -> Iterator[str]:
    """Return the headline, sentences for the first rows, how many more there are, and the notes."""
    if answer.headline:
        yield answer.headline
    for row in answer.table.slice(0, limit).to_pylist():
        row["amount"] = readable(row["amount"], row["unit"])
        decision = row["decision"]
        side, colon, plain = decision.partition(":")
        key = plain if colon else decision
        words = IN_TIME.get(key) if row["unit"] == "s" else None
        words = words or SENTENCES.get(key, "{node}: {decision} of {object} is {amount} {reason}")
        said = " ".join(words.format(**row).split())
        yield f"{side.replace('-', ' ')}: {said}" if colon else said
    if len(answer) > limit:
        yield f"… {counted(len(answer) - limit, 'more row')}: --limit, or -o FILE.csv"
    yield from (f"note: {line}" for line in answer.note_lines)
