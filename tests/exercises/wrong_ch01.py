"""Chapter 01: right and typical wrong answers."""

from __future__ import annotations

from tests.exercises.answers import Answers


def steps(lengths, batch_size):
    total = 0
    for start in range(0, len(lengths), batch_size):
        total += max(lengths[start : start + batch_size])
    return total


def steps_without_the_last_batch(lengths, batch_size):
    total = 0
    for b in range(len(lengths) // batch_size):
        total += max(lengths[b * batch_size : (b + 1) * batch_size])
    return total


def steps_in_place(lengths, batch_size):
    total = 0
    while lengths:
        total += max(lengths[:batch_size])
        del lengths[:batch_size]
    return total


def count_rows(lengths, batch_size):
    useful = wasted = 0
    for i in range(0, len(lengths), batch_size):
        batch = lengths[i : i + batch_size]
        longest = max(batch)
        for n in batch:
            useful += n
            wasted += longest - n
    return useful, wasted


def count_rows_with_empty_slots(lengths, batch_size):
    useful = wasted = 0
    for i in range(0, len(lengths), batch_size):
        batch = lengths[i : i + batch_size]
        useful += sum(batch)
        wasted += max(batch) * batch_size - sum(batch)
    return useful, wasted


def count_rows_global(lengths, batch_size):
    longest = max(lengths)
    return sum(lengths), sum(longest - n for n in lengths)


def form(arrivals, now, batch_size, max_wait):
    if len(arrivals) >= batch_size:
        return batch_size
    if arrivals and now - arrivals[0] >= max_wait:
        return len(arrivals)
    return 0


def form_all(arrivals, now, batch_size, max_wait):
    if len(arrivals) >= batch_size or (arrivals and now - arrivals[0] >= max_wait):
        return len(arrivals)
    return 0


def form_by_newest(arrivals, now, batch_size, max_wait):
    if len(arrivals) >= batch_size:
        return batch_size
    if arrivals and now - arrivals[-1] >= max_wait:
        return len(arrivals)
    return 0


def form_strictly(arrivals, now, batch_size, max_wait):
    if len(arrivals) >= batch_size:
        return batch_size
    return len(arrivals) if arrivals and now - arrivals[0] > max_wait else 0


def longest_first(lengths, batch_size):
    return sorted(lengths, reverse=True)


WASTEFUL = [32, 1, 1, 1, 26, 1, 1, 1]

ANSWERS = {
    "01.1": Answers(
        [26.17, "26.2%", "26.17 %", 100 * 536 / 2048],
        [(1.0469 * 100, "waste_coefficient"), (73.83, "idle_share"), (1.5625, "short_over_long"), (25, "by_rows"),
         (0.2617, "unit_slip"), ("26 MB", "unit_dimension"), ("about a quarter", "not_a_number"), (60, "too_large")],
    ),
    "01.2": Answers(
        [steps, lambda ls, b: sum(max(ls[i : i + b]) for i in range(0, len(ls), b))],
        [(lambda ls, b: max(ls), "one_max"), (lambda ls, b: sum(ls) / b, "fractional"),
         (lambda ls, b: (sum(ls) + b - 1) // b, "bound"), (steps_without_the_last_batch, "loses_last"),
         (lambda ls, b: steps(sorted(ls, reverse=True), b), "sorts"), (lambda ls, b: sum(ls), "serial"),
         (steps_in_place, "changed_input"), (9, "not_callable"), (lambda ls, b: print(b), "no_return"),
         (lambda ls, b: 9, "differs")],
    ),
    "01.3": Answers(
        [count_rows],
        [(count_rows_with_empty_slots, "empty_slots"), (count_rows_global, "global_max"),
         (lambda ls, b: (sum(ls), sum(count_rows(ls, b))), "computed"), (lambda ls, b: (sum(ls), steps(ls, b)), "steps"),
         (lambda ls, b: tuple(reversed(count_rows(ls, b))), "swapped")],
    ),
    "01.4": Answers(["A", "a"], [("B", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong"), ("E", "not_an_option")]),
    "01.5": Answers(
        [(WASTEFUL, longest_first)],
        [((WASTEFUL, lambda ls, b: sorted(ls)), "tail_first"), ((WASTEFUL, lambda ls, b: ls), "untouched"),
         (([8] * 8, longest_first), "not_wasteful"), (([64, 1, 1, 1], longest_first), "wrong_count"),
         (([33, 1, 1, 1, 26, 1, 1, 1], longest_first), "out_of_range"),
         (([32, 1, 1, 1, 24, 1, 1, 1], longest_first), "too_few_tokens"),
         (([8.0] * 8, longest_first), "not_integers"),
         ((WASTEFUL, lambda ls, b: sorted(set(ls))), "not_a_rearrangement"), (WASTEFUL, "two_parts"),
         ((WASTEFUL, lambda ls, b: ls[::2] + ls[1::2]), "not_best")],
    ),
    "01.6": Answers(
        [form],
        [(lambda a, now, b, w: b if len(a) >= b else 0, "only_full"), (lambda a, now, b, w: min(b, len(a)), "never_waits"),
         (form_all, "everybody"), (form_by_newest, "newest_waits"), (form_strictly, "strictly")],
    ),
}  # fmt: skip
