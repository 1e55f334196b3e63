//! The data spec of a job, as users write it.
//!
//! ```yaml
//! data:
//!   mounts:
//!     - source: "s3://training-data/imagenet"
//!       target: "/data/input"
//!       tier_hint: "hot"
//!       access: "read-only"
//!   output: "s3://{tenant}/{project}/{allocation_id}/"
//!   scratch_per_node: "500GB"
//! checkpoint: auto
//! ```
//!
//! Who says nothing gets a home directory, an output directory and nothing to wait for.

use stoker_store::{
    JOB_MOUNTS_MAX, JOB_NODES_MAX, JOB_TEXT_LEN_MAX, JobAccess, JobMount, JobQos, JobSpec, Tier,
};

use crate::amount::{parse_bytes, parse_span_ms};
use crate::place::Place;
use crate::yaml::{self, At, Fault, Node, Value};

/// Longest spec.
pub const SPEC_BYTES_MAX: usize = 32 << 10;
/// How long what is staged is kept for a job that nobody starts, if nobody says it.
pub const RESERVATION_MS_DEFAULT: u64 = 24 * 3_600_000;
/// How long it is kept for one that nobody ends.
pub const TIME_LIMIT_MS_DEFAULT: u64 = 7 * 86_400_000;
/// The longest of both.
const SPAN_MS_MAX: u64 = 90 * 86_400_000;

/// A spec and what it says of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// What people call the job.
    pub name: Option<String>,
    /// Its project.
    pub project: Option<String>,
    /// What it needs, with defaults and templates.
    pub spec: JobSpec,
}

/// Reads a spec, YAML or JSON.
pub fn read_spec(text: &str) -> Result<Spec, Fault> {
    if text.len() > SPEC_BYTES_MAX {
        let message = format!("the spec has {} bytes; at most {SPEC_BYTES_MAX} are read", text.len());
        return Err(Fault::new(At { line: 1, column: 1 }, message));
    }
    let root = yaml::read(text)?;
    let known = ["name", "project", "data", "checkpoint", "qos", "placement", "reservation", "time_limit"];
    let fields = Fields::of(&root, "the spec", &known)?;
    let mut has_defaults = true;
    let mut spec = JobSpec {
        reservation_ms: fields.span("reservation", RESERVATION_MS_DEFAULT)?,
        time_limit_ms: fields.span("time_limit", TIME_LIMIT_MS_DEFAULT)?,
        ..JobSpec::default()
    };
    if let Some(data) = fields.get("data") {
        has_defaults = data_of(data, &mut spec)?;
    }
    spec.checkpoint = match fields.word("checkpoint")? {
        None => false,
        Some((_, "none" | "off" | "false")) => false,
        Some((_, "auto" | "on" | "true")) => true,
        Some((at, other)) => {
            return Err(Fault::new(at, format!("`checkpoint` is `auto` or `none`, not `{other}`")));
        }
    };
    if let Some(qos) = fields.get("qos") {
        spec.qos = qos_of(qos)?;
    }
    if let Some(placement) = fields.get("placement") {
        let fields = Fields::of(placement, "`placement`", &["nodes", "cell"])?;
        spec.nodes = fields.words("nodes", JOB_NODES_MAX)?;
        spec.cell = fields.short("cell")?;
    }
    if has_defaults {
        put_defaults(&mut spec);
    }
    Ok(Spec { name: fields.short("name")?, project: fields.short("project")?, spec })
}

/// Refuses a spec that no text could have given: specs also come over the wire.
pub fn check_spec(spec: &JobSpec) -> Result<(), String> {
    if spec.mounts.len() > JOB_MOUNTS_MAX {
        return Err(format!("a job has at most {JOB_MOUNTS_MAX} mounts"));
    }
    for mount in &spec.mounts {
        check_target(&mount.target)?;
        Place::parse(&mount.source)?;
        if spec.mounts.iter().filter(|other| other.target == mount.target).count() > 1 {
            return Err(format!("two mounts have the target `{}`", mount.target));
        }
    }
    if let Some(output) = &spec.output {
        Place::parse(output)?;
    }
    let spans = [spec.reservation_ms, spec.time_limit_ms];
    if spans.iter().any(|ms| *ms == 0 || *ms > SPAN_MS_MAX) {
        return Err(format!(
            "a reservation or time limit is at most {} days, and not 0",
            SPAN_MS_MAX / 86_400_000
        ));
    }
    let names = || spec.nodes.iter().chain(&spec.cell);
    if spec.nodes.len() > JOB_NODES_MAX || names().any(|name| name.is_empty() || name.len() > 256) {
        return Err(format!("a job names at most {JOB_NODES_MAX} nodes, each with 1 to 256 bytes"));
    }
    let JobQos { floor_bytes_per_s, ceiling_bytes_per_s, .. } = spec.qos;
    if ceiling_bytes_per_s > 0 && floor_bytes_per_s > ceiling_bytes_per_s {
        return Err("the floor of `qos` is above its ceiling".into());
    }
    Ok(())
}

fn check_target(target: &str) -> Result<(), String> {
    let shown = target.chars().take(80).collect::<String>();
    if target.len() > JOB_TEXT_LEN_MAX || !target.starts_with('/') || target.contains(char::is_control) {
        return Err(format!(
            "a target is an absolute path of at most {JOB_TEXT_LEN_MAX} bytes, not `{shown}`"
        ));
    }
    if target.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
        return Err(format!("parts of a target are not empty, `.` or `..`: `{shown}`"));
    }
    Ok(())
}

/// Whether defaults are wanted beside what is said.
fn data_of(node: &Node, spec: &mut JobSpec) -> Result<bool, Fault> {
    let fields = Fields::of(node, "`data`", &["mounts", "output", "scratch_per_node", "defaults"])?;
    if let Some(mounts) = fields.get("mounts") {
        let Value::List(items) = &mounts.value else {
            return Err(Fault::new(mounts.at, format!("`mounts` is a list, not {}", mounts.value.kind())));
        };
        if items.len() > JOB_MOUNTS_MAX {
            return Err(Fault::new(mounts.at, format!("a job has at most {JOB_MOUNTS_MAX} mounts")));
        }
        for item in items {
            let mount = mount_of(item)?;
            if spec.mounts.iter().any(|other| other.target == mount.target) {
                return Err(Fault::new(item.at, format!("two mounts have the target `{}`", mount.target)));
            }
            spec.mounts.push(mount);
        }
    }
    if let Some((at, output)) = fields.word("output")? {
        if output != "none" {
            check_place(output).map_err(|why| Fault::new(at, why))?;
        }
        spec.output = Some(output.to_owned());
    }
    if let Some((at, size)) = fields.word("scratch_per_node")? {
        spec.scratch_per_node = parse_bytes(size).map_err(|why| Fault::new(at, why))?;
    }
    match fields.word("defaults")? {
        None | Some((_, "true" | "on")) => Ok(true),
        Some((_, "false" | "off")) => Ok(false),
        Some((at, _)) => Err(Fault::new(at, "`defaults` is true or false")),
    }
}

fn mount_of(node: &Node) -> Result<JobMount, Fault> {
    let fields = Fields::of(node, "a mount", &["source", "target", "tier_hint", "access"])?;
    let needed = |name: &str| {
        let found = fields.word(name)?;
        found.ok_or_else(|| Fault::new(node.at, format!("a mount needs `{name}`")))
    };
    let (at, source) = needed("source")?;
    check_place(source).map_err(|why| Fault::new(at, why))?;
    let (at, target) = needed("target")?;
    check_target(target).map_err(|why| Fault::new(at, why))?;
    let tier_hint = match fields.word("tier_hint")? {
        None | Some((_, "hot")) => Tier::Hot,
        Some((_, "warm")) => Tier::Warm,
        Some((_, "cold")) => Tier::Cold,
        Some((at, other)) => {
            return Err(Fault::new(at, format!("`tier_hint` is hot, warm or cold, not `{other}`")));
        }
    };
    let access = match fields.word("access")? {
        None | Some((_, "read-only")) => JobAccess::ReadOnly,
        Some((_, "read-write")) => JobAccess::ReadWrite,
        Some((at, other)) => {
            return Err(Fault::new(at, format!("`access` is read-only or read-write, not `{other}`")));
        }
    };
    let (source, target) = (source.to_owned(), target.to_owned());
    Ok(JobMount { source, target, tier_hint, access, is_default: false })
}

/// A place may have templates, also in the name of its volume.
fn check_place(source: &str) -> Result<(), String> {
    let mut filled = source.to_owned();
    for name in ["{user}", "{tenant}", "{project}", "{allocation_id}"] {
        filled = filled.replace(name, "x");
    }
    if let Some(open) = filled.find('{') {
        let name: String = filled[open..].chars().take_while(|c| *c != '}').chain(['}']).take(40).collect();
        return Err(format!(
            "`{name}` is no template; there are {{user}}, {{tenant}}, {{project}} and {{allocation_id}}"
        ));
    }
    Place::parse(&filled).map(drop).map_err(|why| why.replace(&filled, source))
}

fn qos_of(node: &Node) -> Result<JobQos, Fault> {
    let fields = Fields::of(node, "`qos`", &["floor", "ceiling", "latency"])?;
    let rate = |name: &str| match fields.word(name)? {
        None => Ok(0),
        Some((at, text)) => {
            let size = text
                .strip_suffix("/s")
                .ok_or_else(|| Fault::new(at, format!("`{name}` is a rate such as 2GB/s")))?;
            parse_bytes(size).map_err(|why| Fault::new(at, why))
        }
    };
    let interactive = match fields.word("latency")? {
        None | Some((_, "bulk")) => false,
        Some((_, "interactive")) => true,
        Some((at, other)) => {
            return Err(Fault::new(at, format!("`latency` is interactive or bulk, not `{other}`")));
        }
    };
    let qos =
        JobQos { floor_bytes_per_s: rate("floor")?, ceiling_bytes_per_s: rate("ceiling")?, interactive };
    if qos.ceiling_bytes_per_s > 0 && qos.floor_bytes_per_s > qos.ceiling_bytes_per_s {
        return Err(Fault::new(node.at, "the floor is above the ceiling"));
    }
    Ok(qos)
}

/// What a job gets that says nothing of it.
fn put_defaults(spec: &mut JobSpec) {
    match spec.output.as_deref() {
        None => {
            spec.output = Some("s3://{tenant}/{project}/{allocation_id}/".to_owned());
            spec.output_is_default = true;
        }
        Some("none") => spec.output = None,
        Some(_) => {}
    }
    let has_home = spec.mounts.iter().any(|mount| mount.target.starts_with("/home/"));
    if !has_home && spec.mounts.len() < JOB_MOUNTS_MAX {
        spec.mounts.push(JobMount {
            source: "nfs://home/{user}".to_owned(),
            target: "/home/{user}".to_owned(),
            tier_hint: Tier::Warm,
            access: JobAccess::ReadWrite,
            is_default: true,
        });
    }
}

/// The fields of a map, all of which are known.
struct Fields<'n>(Vec<(&'n str, &'n Node)>);

impl<'n> Fields<'n> {
    fn of(node: &'n Node, what: &str, known: &[&str]) -> Result<Fields<'n>, Fault> {
        let fields = match &node.value {
            Value::Map(fields) => fields.as_slice(),
            Value::Empty => &[],
            other => return Err(Fault::new(node.at, format!("{what} is a map, not {}", other.kind()))),
        };
        for (name, _) in fields {
            if !known.contains(&name.text.as_str()) {
                let shown: String = name.text.chars().take(40).collect();
                let message = format!("{what} has no field `{shown}`; it has {}", known.join(", "));
                return Err(Fault::new(name.at, message));
            }
        }
        Ok(Fields(fields.iter().map(|(name, node)| (name.text.as_str(), node)).collect()))
    }

    fn get(&self, name: &str) -> Option<&'n Node> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, node)| *node)
    }

    fn word(&self, name: &str) -> Result<Option<(At, &'n str)>, Fault> {
        match self.get(name).map(|node| (node.at, &node.value)) {
            None | Some((_, Value::Empty)) => Ok(None),
            Some((at, Value::Word(text))) => Ok(Some((at, text))),
            Some((at, other)) => Err(Fault::new(at, format!("`{name}` is a word, not {}", other.kind()))),
        }
    }

    /// A name.
    fn short(&self, name: &str) -> Result<Option<String>, Fault> {
        match self.word(name)? {
            Some((at, text)) if text.is_empty() || text.len() > 128 || text.contains(char::is_control) => {
                Err(Fault::new(at, format!("`{name}` has 1 to 128 bytes, and no control characters")))
            }
            word => Ok(word.map(|(_, text)| text.to_owned())),
        }
    }

    fn words(&self, name: &str, max: usize) -> Result<Vec<String>, Fault> {
        let Some(node) = self.get(name) else { return Ok(Vec::new()) };
        let items = match &node.value {
            Value::Empty => return Ok(Vec::new()),
            Value::List(items) if items.len() <= max => items,
            other => {
                return Err(Fault::new(
                    node.at,
                    format!("`{name}` is a list of at most {max} words, not {}", other.kind()),
                ));
            }
        };
        let word = |item: &Node| match &item.value {
            Value::Word(text) if !text.is_empty() && text.len() <= 256 => Ok(text.clone()),
            _ => Err(Fault::new(item.at, format!("`{name}` is a list of words"))),
        };
        items.iter().map(word).collect()
    }

    fn span(&self, name: &str, default: u64) -> Result<u64, Fault> {
        let Some((at, text)) = self.word(name)? else { return Ok(default) };
        match parse_span_ms(text) {
            Ok(ms) if (1..=SPAN_MS_MAX).contains(&ms) => Ok(ms),
            Ok(_) => Err(Fault::new(
                at,
                format!("`{name}` is at most {} days, and not 0", SPAN_MS_MAX / 86_400_000),
            )),
            Err(why) => Err(Fault::new(at, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = r#"
data:
  mounts:
    - source: "s3://training-data/imagenet"
      target: "/data/input"
      tier_hint: "hot"
      access: "read-only"
    - source: "nfs://home/{user}"
      target: "/home/{user}"
      access: "read-write"
  output: "s3://{tenant}/{project}/{allocation_id}/"
  scratch_per_node: "500GB"
"#;

    #[test]
    fn the_whole_of_it() {
        let read = read_spec(SEED).unwrap().spec;
        assert_eq!(read.mounts.len(), 2);
        assert_eq!(read.mounts[0].tier_hint, Tier::Hot);
        assert_eq!(read.mounts[1].access, JobAccess::ReadWrite);
        assert_eq!(read.scratch_per_node, 500_000_000_000);
        assert!(!read.output_is_default && !read.checkpoint);
        check_spec(&read).unwrap_err(); // Templates are not places yet.
        let more = format!(
            "name: train\nproject: vision\ncheckpoint: auto\nreservation: 2h\nplacement: {{nodes: [n1, n2], cell: r1}}\n\
             qos: {{floor: 2GB/s, ceiling: 4GB/s, latency: interactive}}\n{SEED}"
        );
        let read = read_spec(&more).unwrap();
        assert_eq!((read.name.as_deref(), read.project.as_deref()), (Some("train"), Some("vision")));
        assert_eq!((read.spec.nodes.len(), read.spec.cell.as_deref()), (2, Some("r1")));
        assert_eq!(read.spec.reservation_ms, 7_200_000);
        assert_eq!(read.spec.qos.floor_bytes_per_s, 2_000_000_000);
    }

    #[test]
    fn who_says_nothing_gets_defaults() {
        let spec = read_spec("").unwrap().spec;
        assert_eq!(spec.output.as_deref(), Some("s3://{tenant}/{project}/{allocation_id}/"));
        assert!(spec.output_is_default && spec.mounts[0].is_default);
        assert_eq!(
            (spec.mounts[0].source.as_str(), spec.mounts[0].tier_hint),
            ("nfs://home/{user}", Tier::Warm)
        );
        let spec = read_spec("data: {output: none, defaults: true}").unwrap().spec;
        assert_eq!(spec.output, None);
        let spec = read_spec("data: {defaults: false}").unwrap().spec;
        assert_eq!((spec.output, spec.mounts.len()), (None, 0));
    }

    #[test]
    fn faults_name_line_and_column() {
        for (text, line, column, part) in [
            ("dta:\n", 1, 1, "no field `dta`"),
            ("data:\n  mount: []", 2, 3, "it has mounts, output"),
            ("data:\n  mounts: x", 2, 11, "is a list"),
            ("data:\n  mounts:\n    - source: s3://a/b", 3, 7, "needs `target`"),
            ("data:\n  mounts:\n    - source: s3://a/b\n      target: in", 4, 15, "absolute path"),
            ("data:\n  mounts:\n    - source: s3://a/b\n      target: /a/../b", 4, 15, "`..`"),
            ("data:\n  mounts:\n    - {source: gs://a, target: /in}", 3, 16, "begins with s3://"),
            ("data:\n  mounts:\n    - {source: s3://a/{who}, target: /in}", 3, 23, ""),
            (
                "data:\n  mounts:\n    - {source: 's3://a/{who}', target: /in}",
                3,
                16,
                "`{who}` is no template",
            ),
            (
                "data:\n  mounts:\n    - {source: s3://a, target: /i, tier_hint: lukewarm}",
                3,
                47,
                "hot, warm or cold",
            ),
            (
                "data:\n  mounts:\n    - {source: s3://a, target: /i, access: rw}",
                3,
                44,
                "read-only or read-write",
            ),
            (
                "data:\n  mounts:\n    - {source: s3://a, target: /i}\n    - {source: s3://b, target: /i}",
                4,
                7,
                "two mounts",
            ),
            ("data:\n  scratch_per_node: lots", 2, 21, "no size"),
            ("checkpoint: maybe", 1, 13, "auto"),
            ("qos: {floor: 5}", 1, 14, "a rate"),
            ("qos: {floor: 5GB/s, ceiling: 1GB/s}", 1, 6, "above the ceiling"),
            ("reservation: 0s", 1, 14, "not 0"),
            ("placement: {nodes: n1}", 1, 20, "a list"),
            ("[a]", 1, 1, "is a map"),
        ] {
            let fault = read_spec(text).expect_err(text);
            assert_eq!((fault.at.line, fault.at.column), (line, column), "{text:?}: {fault}");
            assert!(fault.message.contains(part), "{text:?}: {fault}");
        }
    }

    #[test]
    fn json_is_a_spec_too() {
        let text =
            r#"{"data": {"mounts": [{"source": "s3://a/b", "target": "/in"}], "output": "s3://out/x"}}"#;
        let spec = read_spec(text).unwrap().spec;
        assert_eq!((spec.mounts.len(), spec.output.as_deref()), (2, Some("s3://out/x")));
    }
}
