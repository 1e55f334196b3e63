//! Bad periods in a row. One bad period is nothing; some make a part less wanted; many take it out. Good ones in a row undo it,
//! and more of them than it took, so that a part at the edge does not flap. A period without data is neither.

/// What one period was.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// Within the objective.
    Good,
    /// Within the objective, or without one, and far from its peers.
    Odd(Finding),
    /// Outside the objective.
    Bad(Finding),
}

/// What was found, for evidence.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Finding {
    pub found: String,
    pub limit: String,
}

/// Periods in a row that make a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub mitigate: u32,
    pub quarantine: u32,
    pub recover: u32,
    pub stale_ms: u64,
}

/// The periods of one indicator of one part.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Streak {
    /// Bad or odd ones in a row.
    trouble: u32,
    /// Bad ones in a row.
    breaches: u32,
    goods: u32,
    /// It was in trouble for long enough, and not good for long enough since.
    raised: bool,
    /// When the trouble began.
    since_ms: u64,
    /// When there was data last.
    last_ms: u64,
    finding: Finding,
}

impl Streak {
    pub fn note(&mut self, run_ms: u64, verdict: Verdict, rows: &Rows) {
        self.expire(run_ms, rows);
        self.last_ms = run_ms;
        match verdict {
            Verdict::Good => {
                (self.trouble, self.breaches) = (0, 0);
                self.goods = self.goods.saturating_add(1);
                self.raised &= self.goods < rows.recover;
            }
            Verdict::Odd(finding) => {
                self.note_trouble(run_ms, finding, rows);
                self.breaches = 0;
            }
            Verdict::Bad(finding) => {
                self.note_trouble(run_ms, finding, rows);
                self.breaches = self.breaches.saturating_add(1);
            }
        }
    }

    fn note_trouble(&mut self, run_ms: u64, finding: Finding, rows: &Rows) {
        if self.trouble == 0 {
            self.since_ms = run_ms;
        }
        self.goods = 0;
        self.trouble = self.trouble.saturating_add(1);
        self.raised |= self.trouble >= rows.mitigate;
        self.finding = finding;
    }

    /// Forgets what is too old to be the beginning of a row.
    pub fn expire(&mut self, run_ms: u64, rows: &Rows) {
        if run_ms.saturating_sub(self.last_ms) > rows.stale_ms {
            *self = Streak { last_ms: self.last_ms, ..Streak::default() };
        }
    }

    /// Less should be asked of the part.
    pub fn is_raised(&self) -> bool {
        self.raised
    }

    /// It should be taken out.
    pub fn is_sustained(&self, rows: &Rows) -> bool {
        self.breaches >= rows.quarantine
    }

    /// It is good since so many periods.
    pub fn goods(&self) -> u32 {
        self.goods
    }

    pub fn breaches(&self) -> u32 {
        self.breaches
    }

    pub fn trouble(&self) -> u32 {
        self.trouble
    }

    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    pub fn finding(&self) -> &Finding {
        &self.finding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Rows = Rows { mitigate: 3, quarantine: 6, recover: 4, stale_ms: 50 };

    /// Periods of ten: `b` bad, `o` odd, `g` good, `.` without data. Then raised, sustained, good ones.
    fn check(periods: &str, expect: (bool, bool, u32)) {
        let mut streak = Streak::default();
        let mut run_ms = 0;
        for period in periods.chars() {
            run_ms += 10;
            match period {
                'g' => streak.note(run_ms, Verdict::Good, &ROWS),
                'o' => streak.note(run_ms, Verdict::Odd(Finding::default()), &ROWS),
                'b' => streak.note(run_ms, Verdict::Bad(Finding::default()), &ROWS),
                _ => streak.expire(run_ms, &ROWS),
            }
        }
        let found = (streak.is_raised(), streak.is_sustained(&ROWS), streak.goods());
        assert_eq!(found, expect, "{periods}");
    }

    #[test]
    fn rows_count_and_single_periods_do_not() {
        check("", (false, false, 0));
        check("bb", (false, false, 0));
        check("bbb", (true, false, 0));
        check("bbbbb", (true, false, 0));
        check("bbbbbb", (true, true, 0));
        check("bbgbbgbbg", (false, false, 1));
        check("bbbbbgb", (true, false, 0));
        // Raised until it was good for long enough.
        check("bbbggg", (true, false, 3));
        check("bbbgggb", (true, false, 0));
        check("bbbgggg", (false, false, 4));
    }

    #[test]
    fn odd_ones_never_take_a_part_out() {
        check("ooo", (true, false, 0));
        check("oooooooooooo", (true, false, 0));
        check("bbbbbo", (true, false, 0));
        check("obbbbbb", (true, true, 0));
    }

    #[test]
    fn missing_data_is_neither() {
        check("bb...b", (true, false, 0));
        check("bbbbb.....", (true, false, 0));
        // Then it is too old.
        check("bbbbb......", (false, false, 0));
        check("bbbbb......b", (false, false, 0));
        check("gggg......", (false, false, 0));
    }
}
