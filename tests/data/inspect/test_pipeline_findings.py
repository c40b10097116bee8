"""What checks and explanations say, and that they survive JSON."""

from __future__ import annotations

from memfit.data.inspect.pipeline_findings import Check, Explanation, Finding, Part

SHUFFLE = Finding("shuffle", 3, "shuffle", 200 << 20, 200 << 20, "A buffer.", ".shuffle(10)")
PYTHON = Finding("python", 2, "map", None, None, "Python.", "")
SMALL = Finding("batch", 4, "batch", 2048, 2048, "A batch.", "")
GROWING = Finding("prefetch", 5, "prefetch", 1 << 20, 1 << 30, "A few.", ".prefetch(2)")
STREAM = Explanation(
    source="image files",
    elements=1000,
    element_bytes=300 << 10,
    batch_size=8,
    ram_bytes=128 << 20,
    parts=(Part("reading", 1 << 10), Part("batches that wait", 23 << 20)),
    parallel=2,
    prefetch=8,
    window=0,
    reasons=("2 threads read and decode: as many as there are cores.",),
    order="as the elements are stored, the same each epoch",
    start=16,
    on_error="skip",
    skipped=3,
    listed=("a.jpg: no image",),
    above=(SHUFFLE,),
)


def test_records_survive_json() -> None:
    for record in (Check((SHUFFLE, PYTHON), 3), Check(()), STREAM):
        assert type(record).from_json(record.to_json()) == record


def test_a_check_adds_up_and_lists_the_largest_first() -> None:
    check = Check((SMALL, PYTHON, GROWING, SHUFFLE))
    assert check.total_bytes == (201 << 20) + 2048
    assert check.most_bytes is None
    assert check.unknown == (PYTHON,)
    assert str(check) == (
        "This pipeline holds about 201.0 MiB; 1 thing more cannot be known.\n"
        "  5. prefetch: 1.0 MiB. A few.\n"
        "    Try: .prefetch(2)\n"
        "  3. shuffle: 200.0 MiB. A buffer.\n"
        "    Try: .shuffle(10)\n"
        "  2. map: not known. Python.\n"
        "  1 thing below 1 MiB, together 2.0 KiB."
    )


def test_what_may_grow_is_said_first() -> None:
    assert str(Check((GROWING,))).startswith("This pipeline holds about 1.0 MiB, at most 1.0 GiB.\n")
    endless = Finding("window", 2, "group_by_window", 1 << 20, None, "Groups.", "")
    assert str(Check((endless,))).startswith("This pipeline holds about 1.0 MiB, and nothing bounds it.\n")
    assert str(Check(())) == "This pipeline holds about 0 B."


def test_an_explanation_says_what_was_chosen_and_what_was_lost() -> None:
    assert STREAM.total_bytes == (23 << 20) + 1024
    assert str(STREAM).splitlines() == [
        "A stream of 1,000 elements of 300.0 KiB from image files, in batches of 8.",
        "  It takes at most 23.0 MiB of ram=128.0 MiB:",
        "      23.0 MiB  batches that wait",
        "       1.0 KiB  reading",
        "  2 threads read and decode: as many as there are cores.",
        "  Order: as the elements are stored, the same each epoch.",
        "  It begins after 16 elements that were used before.",
        "  Elements that cannot be read are left out, 3 so far:",
        "    a.jpg: no image",
        "    … and 2 more",
        "  What was put on top of it holds more:",
        "    3. shuffle: 200.0 MiB. A buffer.",
        "      Try: .shuffle(10)",
    ]
