//! The steps of the gate, as a table, and what came of each.

use serde_json::{Value, json};

use super::baseline::{Baseline, Baselines, Better};

/// What is measured, what it needs and how.
#[derive(PartialEq, Eq, Debug)]
pub struct Step {
    /// As in the report and in the file of baselines.
    pub name: &'static str,
    /// As in `--steps`.
    pub group: &'static str,
    /// What has to be there.
    pub needs: &'static str,
    /// How it is measured.
    pub how: &'static str,
    pub unit: &'static str,
    pub better: Better,
}

const fn step(
    name: &'static str,
    group: &'static str,
    unit: &'static str,
    better: Better,
    needs: &'static str,
    how: &'static str,
) -> Step {
    Step { name, group, needs, how, unit, better }
}

const HIGHER: Better = Better::Higher;
const LOWER: Better = Better::Lower;
const ROOM: &str = "room beside the ring";
const NODE: &str = "the node runs";

/// The best of some rounds counts: what else the machine does makes figures worse, never better.
pub const STEPS: [Step; 25] = [
    step(
        "device_write_4m",
        "device",
        "MB/s",
        HIGHER,
        ROOM,
        "durable writes past the page cache, 8 at a time",
    ),
    step("device_read_4m", "device", "MB/s", HIGHER, "a drive", "reads past the page cache, 8 at a time"),
    step("device_write_4k_p99", "device", "us", LOWER, ROOM, "durable writes, one at a time"),
    step("device_read_4k_p99", "device", "us", LOWER, "a drive", "reads, one at a time"),
    step("ring_append_4m", "ring", "MB/s", HIGHER, ROOM, "appends to a ring of its own, 8 at a time"),
    step("ring_append_4k_p99", "ring", "us", LOWER, ROOM, "appends to a ring of its own, one at a time"),
    step("ring_read_4m", "ring", "MB/s", HIGHER, ROOM, "verified reads of that ring, 8 at a time"),
    step(
        "commit_4k_p50",
        "commit",
        "us",
        LOWER,
        NODE,
        "files of 4 KiB in a volume of its own, copies checked, read back",
    ),
    step(
        "commit_4m_p50",
        "commit",
        "us",
        LOWER,
        NODE,
        "files of 4 MiB in a volume of its own, copies checked, read back",
    ),
    step("catalog_commit_p50", "catalog", "us", LOWER, NODE, "transactions that hand out a number"),
    step("catalog_read_p50", "catalog", "us", LOWER, NODE, "looks at one name"),
    step("fabric_trip_p50", "fabric", "us", LOWER, "two nodes", "questions from each node to each other one"),
    step(
        "fabric_send",
        "fabric",
        "MB/s",
        HIGHER,
        "two nodes",
        "bytes that are dropped, from each node to each other one",
    ),
    step("lake_put_p50", "lake", "us", LOWER, "the lake", "objects of 4 KiB under a prefix of its own"),
    step("lake_get_p50", "lake", "us", LOWER, "the lake", "the same objects, compared"),
    step("lake_delete_p50", "lake", "us", LOWER, "the lake", "the same objects"),
    step("lake_upload", "lake", "MB/s", HIGHER, "the lake", "an object in two parts under that prefix"),
    step("lake_download", "lake", "MB/s", HIGHER, "the lake", "the same object in two ranges, compared"),
    step("ib_write_bw", "tools", "Gb/s", HIGHER, "ib_write_bw, an RDMA device", "each device to itself"),
    step(
        "nccl_all_reduce",
        "tools",
        "GB/s",
        HIGHER,
        "all_reduce_perf, two GPUs",
        "bus bandwidth over all GPUs",
    ),
    step(
        "fio_nvmeof_read",
        "tools",
        "MB/s",
        HIGHER,
        "fio, a drive by NVMe-oF",
        "random reads of 128 KiB, read-only",
    ),
    step(
        "fio_nvmeof_read_4k_p99",
        "tools",
        "us",
        LOWER,
        "fio, a drive by NVMe-oF",
        "random reads of 4 KiB, one at a time",
    ),
    step(
        "ior_write",
        "tools",
        "MB/s",
        HIGHER,
        "ior, a mounted volume",
        "one process, 1 MiB at a time, fsync",
    ),
    step("ior_read", "tools", "MB/s", HIGHER, "ior, a mounted volume", "the same file"),
    step(
        "mlperf_checkpoint_write",
        "tools",
        "GB/s",
        HIGHER,
        "mlpstorage, mpirun, a mounted volume",
        "one checkpoint of llama3-8b",
    ),
];

/// A step by its name, which is one of ours.
pub fn named(name: &str) -> &'static Step {
    STEPS.iter().find(|step| step.name == name).expect("a step of the table")
}

/// The groups, in their order.
pub fn groups() -> Vec<&'static str> {
    let mut groups: Vec<&str> = STEPS.iter().map(|step| step.group).collect();
    groups.dedup();
    groups
}

/// What a step came to for one subject.
#[derive(PartialEq, Debug)]
pub enum Verdict {
    /// As good as it has to be.
    Pass,
    /// Worse, or it did not work at all: why.
    Fail(String),
    /// It was not done: why.
    Skipped(String),
}

/// A step with its subject and what came of it.
#[derive(PartialEq, Debug)]
pub struct Outcome {
    pub step: &'static Step,
    /// As the file of baselines knows it.
    pub subject: String,
    /// As people know it.
    pub shown: String,
    pub figure: Option<f64>,
    /// What it was compared with.
    pub baseline: Option<Baseline>,
    pub verdict: Verdict,
}

impl Outcome {
    /// A figure, not judged yet.
    pub fn measured(step: &str, subject: impl Into<String>, figure: f64) -> Outcome {
        let subject = subject.into();
        let sound = figure.is_finite() && figure > 0.0;
        let verdict = match sound {
            true => Verdict::Pass,
            false => Verdict::Fail(format!("{figure} is no figure: too little was done in the time")),
        };
        let figure = sound.then_some(figure);
        Outcome { step: named(step), shown: subject.clone(), subject, figure, baseline: None, verdict }
    }

    /// A step that did not work.
    pub fn failed(step: &str, subject: impl Into<String>, why: impl Into<String>) -> Outcome {
        Outcome::without(step, subject, Verdict::Fail(why.into()))
    }

    /// A step that was not done.
    pub fn skipped(step: &str, subject: impl Into<String>, why: impl Into<String>) -> Outcome {
        Outcome::without(step, subject, Verdict::Skipped(why.into()))
    }

    fn without(step: &str, subject: impl Into<String>, verdict: Verdict) -> Outcome {
        let subject = subject.into();
        Outcome { step: named(step), shown: subject.clone(), subject, figure: None, baseline: None, verdict }
    }

    /// The same with a name for people.
    #[must_use]
    pub fn shown_as(mut self, shown: impl Into<String>) -> Outcome {
        self.shown = shown.into();
        self
    }

    /// The same, compared with what was recorded.
    #[must_use]
    pub fn judged(mut self, baselines: &Baselines, release: &str, quick: bool) -> Outcome {
        let Some(figure) = self.figure.filter(|_| self.verdict == Verdict::Pass) else { return self };
        let Some(baseline) = baselines.find(release, self.step.name, &self.subject, quick) else {
            return self;
        };
        // By the table, not by the file: a file that has them the wrong way round must not turn a failure into a pass.
        let limit = self.step.better.limit(baseline.figure);
        if !self.step.better.holds(figure, limit) {
            let unit = self.step.unit;
            self.verdict =
                Verdict::Fail(format!("{} {unit}, the limit is {} {unit}", short(figure), short(limit)));
        }
        self.baseline = Some(baseline.clone());
        self
    }

    /// The worst figure that passes, if that is known.
    pub fn limit(&self) -> Option<f64> {
        self.baseline.as_ref().map(|baseline| self.step.better.limit(baseline.figure))
    }

    /// Its verdict in one word.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Pass => "pass",
            Verdict::Fail(_) => "fail",
            Verdict::Skipped(_) => "skipped",
        }
    }

    /// Why it failed or was not done.
    pub fn why(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Pass => None,
            Verdict::Fail(why) | Verdict::Skipped(why) => Some(why),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "step": self.step.name,
            "group": self.step.group,
            "subject": self.subject,
            "shown": self.shown,
            "result": self.word(),
            "why": self.why(),
            "figure": self.figure,
            "unit": self.step.unit,
            "better": self.step.better,
            "baseline": self.baseline.as_ref().map(|baseline| baseline.figure),
            "baseline_release": self.baseline.as_ref().map(|baseline| &baseline.release),
            "limit": self.limit(),
            "needs": self.step.needs,
            "how": self.step.how,
        })
    }
}

/// A figure with as many digits as mean something.
pub fn short(figure: f64) -> String {
    match figure {
        f if f >= 100.0 => format!("{f:.0}"),
        f if f >= 10.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(figure: f64) -> Baselines {
        let mut all = Baselines::default();
        for (step, subject) in [("commit_4k_p50", "node"), ("device_read_4m", "S1")] {
            all.put(Baseline {
                release: "1".into(),
                step: step.into(),
                subject: subject.into(),
                figure,
                unit: named(step).unit.into(),
                better: named(step).better,
                quick: false,
                taken_ms: 1,
            });
        }
        all
    }

    #[test]
    fn figures_are_judged_by_their_baseline() {
        let all = recorded(100.0);
        let check = |step: &str, subject: &str, figure: f64, word: &str, limit: Option<f64>| {
            let outcome = Outcome::measured(step, subject, figure).judged(&all, "1", false);
            assert_eq!((outcome.word(), outcome.limit()), (word, limit), "{step} {figure}");
        };
        check("commit_4k_p50", "node", 149.0, "pass", Some(150.0));
        check("commit_4k_p50", "node", 151.0, "fail", Some(150.0));
        check("device_read_4m", "S1", 67.0, "pass", Some(100.0 / 1.5));
        check("device_read_4m", "S1", 66.0, "fail", Some(100.0 / 1.5));
        check("device_read_4m", "another", 1.0, "pass", None);
        check("device_read_4m", "S1", 0.0, "fail", None);
        check("device_read_4m", "S1", f64::NAN, "fail", None);
    }

    #[test]
    fn what_was_not_done_or_did_not_work_stays_that() {
        let all = recorded(100.0);
        let skipped = Outcome::skipped("device_read_4m", "S1", "no drive").judged(&all, "1", false);
        assert_eq!((skipped.word(), skipped.why()), ("skipped", Some("no drive")));
        let failed = Outcome::failed("device_read_4m", "S1", "broken").judged(&all, "1", false);
        assert_eq!((failed.word(), failed.json()["figure"].is_null()), ("fail", true));
    }

    #[test]
    fn the_table_is_sound() {
        let mut names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
        assert_eq!(groups(), ["device", "ring", "commit", "catalog", "fabric", "lake", "tools"]);
        for step in &STEPS {
            let is_time = matches!(step.unit, "us");
            assert_eq!(is_time, step.better == Better::Lower, "{}", step.name);
        }
    }
}
