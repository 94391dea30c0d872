"""What holdfast costs, beside the other Python locks and beside the least that the wire allows.

    python -m bench                     everything, a quarter of an hour; writes docs/benchmarks.md, its Chinese twin,
                                        docs/evidence/performance.md and the pictures
    python -m bench --only threads      some rows
    python -m bench --quick             a little of everything, to check that it runs

Laws: what is compared is measured in the same run, in interleaved rounds, against one private server; a ratio is the
median of the rounds' ratios, since a shared machine is never equally fast twice; what is missing is said, not
left out.

One module of `rows` for each kind of question; `peers` and `peers_aio` hold the ways to lock (the floors too),
`crowd` the parties that contend, `tables` and `page` what is shown.
"""
