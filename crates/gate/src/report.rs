//! What the gate found, for people and for programs.

use std::path::Path;

use serde_json::{Value, json};

use super::RELEASE;
use super::site::Site;
use super::step::{Outcome, STEPS, Verdict, short};
use crate::failure::Failure;
use crate::{clock, out};
use stoker_probe::machine;

/// Rows of one step that are shown; of more that pass, the worst.
const ROWS_MAX: usize = 12;

/// Everything that is told.
pub struct Told<'t> {
    pub site: &'t Site,
    pub outcomes: &'t [Outcome],
    pub is_quick: bool,
    /// The file of baselines.
    pub path: &'t Path,
    pub recorded: usize,
}

impl Told<'_> {
    fn count(&self, word: &str) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.word() == word).count()
    }

    fn verdict(&self) -> &'static str {
        match (self.count("fail"), self.count("pass")) {
            (0, 0) => "nothing could be measured",
            (0, _) => "pass",
            _ => "fail",
        }
    }

    /// For programs.
    pub fn json(&self) -> Result<(), Failure> {
        let steps: Vec<Value> = self.outcomes.iter().map(Outcome::json).collect();
        out::json(&json!({
            "gate": self.verdict(),
            "release": RELEASE,
            "node": self.site.node,
            "quick": self.is_quick,
            "taken": clock::rfc3339(clock::unix_ms()),
            "baseline_file": self.path.display().to_string(),
            "recorded": self.recorded,
            "steps": steps,
            "machine": machine::describe(&self.site.dir),
        }))
    }

    /// For people.
    pub fn words(&self) -> Result<(), Failure> {
        let heads = ["step", "figure", "baseline", "limit", "result  of"];
        let mut rows = vec![heads.map(String::from).to_vec()];
        for step in &STEPS {
            let of_step: Vec<&Outcome> =
                self.outcomes.iter().filter(|outcome| outcome.step == step).collect();
            rows.extend(rows_of(&of_step));
        }
        out::table(&rows)?;
        let (pass, fail, skipped) = (self.count("pass"), self.count("fail"), self.count("skipped"));
        out::line(format!("{}: {pass} passed, {fail} failed, {skipped} skipped", self.verdict()))?;
        let unknown =
            self.outcomes.iter().filter(|one| one.verdict == Verdict::Pass && one.baseline.is_none()).count();
        if self.recorded > 0 {
            out::say(format!(
                "{} figures are the baseline of release {RELEASE} now, in {}",
                self.recorded,
                self.path.display()
            ));
        } else if unknown > 0 {
            out::say(format!(
                "{unknown} figures have no baseline yet: on a node that is known to be good, `stoker gate --record`"
            ));
        }
        Ok(())
    }
}

/// The rows of one step: all, or the worst of those that pass if there are many.
fn rows_of(outcomes: &[&Outcome]) -> Vec<Vec<String>> {
    let (passed, others): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().copied().partition(|outcome| outcome.verdict == Verdict::Pass);
    if passed.len() <= ROWS_MAX {
        return outcomes.iter().map(|outcome| row(outcome, "")).collect();
    }
    let better = passed[0].step.better;
    let worst = passed.iter().reduce(|worst, one| {
        let figure = |outcome: &Outcome| outcome.figure.unwrap_or_default();
        if better.holds(figure(worst), figure(one)) { one } else { worst }
    });
    let more = format!(", the worst of {}", passed.len());
    worst
        .into_iter()
        .map(|outcome| row(outcome, &more))
        .chain(others.into_iter().map(|one| row(one, "")))
        .collect()
}

fn row(outcome: &Outcome, more: &str) -> Vec<String> {
    let unit = outcome.step.unit;
    let figure = |figure: Option<f64>| {
        figure.map_or_else(|| "-".to_owned(), |figure| format!("{} {unit}", short(figure)))
    };
    let why = match outcome.why() {
        Some(why) => format!(": {why}"),
        None => String::new(),
    };
    vec![
        outcome.step.name.to_owned(),
        figure(outcome.figure),
        figure(outcome.baseline.as_ref().map(|baseline| baseline.figure)),
        figure(outcome.limit()),
        format!("{:7} {}{more}{why}", outcome.word(), outcome.shown),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_that_pass_the_worst_is_shown_and_every_failure() {
        let leg = |at: usize, figure: f64| Outcome::measured("fabric_send", format!("leg {at}"), figure);
        let few: Vec<Outcome> = (0..3).map(|at| leg(at, 10.0 + at as f64)).collect();
        assert_eq!(rows_of(&few.iter().collect::<Vec<_>>()).len(), 3);
        let mut many: Vec<Outcome> = (0..40).map(|at| leg(at, 10.0 + (at as f64 - 20.0).abs())).collect();
        many.push(Outcome::failed("fabric_send", "leg 40", "no answer"));
        let rows = rows_of(&many.iter().collect::<Vec<_>>());
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0][1], "10.0 MB/s");
        assert!(rows[0][4].contains("leg 20, the worst of 40"), "{rows:?}");
        assert!(rows[1][4].starts_with("fail") && rows[1][4].ends_with("no answer"), "{rows:?}");
    }
}
