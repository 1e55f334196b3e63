//! With real programs that write down how they were called.

use super::super::program::tests::script;
use super::*;

/// A scheduler of one node, in a directory.
struct Scheduler(tempfile::TempDir);

impl Scheduler {
    /// One whose program writes down each call, prints the file `node` if it is asked for the node, and otherwise does
    /// what the file `then` says.
    fn new(node: &str) -> Scheduler {
        let dir = tempfile::tempdir().unwrap();
        let program = format!(
            "for word; do printf '<%s>' \"$word\"; done >> {0}/log; echo >> {0}/log\n\
             case $1 in show|get) cat {0}/node ;; *) if [ -e {0}/then ]; then . {0}/then; fi ;; esac",
            dir.path().display()
        );
        script(dir.path(), "program", &program);
        let scheduler = Scheduler(dir);
        scheduler.write("node", node);
        scheduler
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn hook(&self, kind: &str, rest: &str) -> Hook {
        let program = self.0.path().join("program");
        let text = format!("[slo.hook]\nkind = \"{kind}\"\nprogram = \"{}\"\n{rest}", program.display());
        Hook::new(&Slo::parse(&text).unwrap()).unwrap()
    }

    /// How it was called since the last time.
    fn calls(&self) -> Vec<String> {
        let path = self.0.path().join("log");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text.lines().map(str::to_owned).collect()
    }
}

fn slurm(state: &str, reason: &str) -> String {
    format!(
        "NodeName=gpu-07 Arch=x86_64 CoresPerSocket=48 OS=Linux 6.8.0 #1 SMP NextState=DRAIN State={state} ThreadsPerCore=2 \
         Partitions=gpu BootTime=2026-01-01T00:00:00 AllocTRES= {reason}\n"
    )
}

const SHOW: &str = "<show><node><-o><gpu-07>";

#[tokio::test]
async fn slurm_drains_and_undrains_what_is_ours() {
    let scheduler = Scheduler::new(&slurm("IDLE", ""));
    let hook = scheduler.hook("slurm", "");
    assert_eq!(hook.cordon("gpu-07", "a \"bad\"\n drive $(id); x").await.unwrap(), "gpu-07 is drained");
    assert_eq!(
        scheduler.calls(),
        [SHOW, "<update><NodeName=gpu-07><State=DRAIN><Reason=stoker: a 'bad' drive $(id); x>"]
    );
    scheduler.write("node", &slurm("DOWN*+DRAIN", "Reason=stoker: a bad drive [root@2026-01-01T00:00:00]"));
    assert_eq!(hook.cordon("gpu-07", "again").await.unwrap(), "gpu-07 is drained already");
    assert_eq!(scheduler.calls(), [SHOW]);
    assert_eq!(hook.uncordon("gpu-07").await.unwrap(), "gpu-07 is not drained any more");
    assert_eq!(scheduler.calls(), [SHOW, "<update><NodeName=gpu-07><State=UNDRAIN>"]);
    scheduler.write("node", &slurm("MIXED", "Reason=stoker: an old one"));
    assert_eq!(hook.uncordon("gpu-07").await.unwrap(), "gpu-07 is not drained");
    assert_eq!(scheduler.calls(), [SHOW]);
}

#[tokio::test]
async fn slurm_leaves_what_others_drained() {
    for reason in
        ["Reason=memory, see stoker: 7 [ann@x]", "", "Reason=x Reason=stoker: y", "Comment=stoker: z"]
    {
        let scheduler = Scheduler::new(&slurm("IDLE+DRAIN", reason));
        let hook = scheduler.hook("slurm", "");
        let words = hook.cordon("gpu-07", "bad").await.unwrap();
        assert!(words.starts_with("somebody else drained gpu-07"), "{words}");
        let words = hook.uncordon("gpu-07").await.unwrap();
        assert!(words.starts_with("somebody else drained gpu-07, it stays so"), "{words}");
        assert_eq!(scheduler.calls(), [SHOW, SHOW]);
    }
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_changes_nothing() {
    for node in
        ["", "Node gpu-07 not found\n", "NodeName=gpu-070 State=IDLE\n", "NodeName=gpu-07\n", "{", "[]", "{}"]
    {
        let scheduler = Scheduler::new(node);
        for kind in ["slurm", "kubernetes"] {
            let hook = scheduler.hook(kind, "");
            assert!(hook.cordon("gpu-07", "bad").await.is_err(), "{node}");
            assert!(hook.uncordon("gpu-07").await.is_err(), "{node}");
        }
        assert_eq!(scheduler.calls().len(), 4, "{node}");
    }
}

fn kube(annotation: Option<&str>, spec: &str) -> String {
    let annotations = match annotation {
        Some(reason) => format!("{{\"{ANNOTATION}\":\"{reason}\",\"node.alpha.kubernetes.io/ttl\":\"0\"}}"),
        None => "{\"a\":\"b\"}".into(),
    };
    // A real one has many images, more than is kept of other answers.
    let images = format!("\"{}\",", "x".repeat(100)).repeat(200);
    format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{{\"name\":\"gpu-07\",\"annotations\":{annotations}}},\"spec\":{spec},\"status\":{{\"images\":[{images}1]}}}}"
    )
}

#[tokio::test]
async fn kubernetes_cordons_and_uncordons_what_is_ours() {
    const GET: &str = "<get><node><gpu-07><-o><json>";
    let scheduler = Scheduler::new(&kube(None, "{}"));
    let hook = scheduler.hook("kubernetes", "[slo.hook.names]\n\"stoker 7\" = \"gpu-07\"");
    assert_eq!(hook.cordon("stoker 7", "bad drive").await.unwrap(), "gpu-07 is cordoned");
    assert_eq!(
        scheduler.calls(),
        [
            GET,
            "<annotate><--overwrite><node><gpu-07><stoker.dev/cordoned=stoker: bad drive>",
            "<cordon><gpu-07>"
        ]
    );
    scheduler.write("node", &kube(Some("stoker: bad drive"), "{\"unschedulable\":true}"));
    assert_eq!(hook.cordon("stoker 7", "bad drive").await.unwrap(), "gpu-07 is cordoned already");
    assert_eq!(hook.uncordon("stoker 7").await.unwrap(), "gpu-07 is not cordoned any more");
    assert_eq!(
        scheduler.calls(),
        [GET, GET, "<uncordon><gpu-07>", "<annotate><node><gpu-07><stoker.dev/cordoned->"]
    );
    // Somebody uncordoned it meanwhile; the mark goes all the same.
    scheduler.write("node", &kube(Some("x"), "{}"));
    hook.uncordon("stoker 7").await.unwrap();
    assert_eq!(scheduler.calls(), [GET, "<annotate><node><gpu-07><stoker.dev/cordoned->"]);
    scheduler.write("node", &kube(None, "{\"unschedulable\":true}"));
    assert_eq!(hook.cordon("stoker 7", "bad").await.unwrap(), "somebody else cordoned gpu-07");
    assert_eq!(hook.uncordon("stoker 7").await.unwrap(), "somebody else cordoned gpu-07, it stays so");
    assert_eq!(scheduler.calls(), [GET, GET]);
    scheduler.write("node", &kube(None, "{}"));
    assert_eq!(hook.uncordon("stoker 7").await.unwrap(), "gpu-07 is not cordoned");
}

#[tokio::test]
async fn a_program_that_fails_says_why() {
    let scheduler = Scheduler::new(&slurm("IDLE", ""));
    scheduler.write("then", "echo 'slurm_update error: Invalid user id' >&2; exit 1");
    let why = scheduler.hook("slurm", "").cordon("gpu-07", "bad").await.unwrap_err();
    assert!(why.ends_with("program: exit status: 1: slurm_update error: Invalid user id"), "{why}");
    scheduler.write("then", "exec sleep 1000");
    let why = scheduler.hook("slurm", "timeout_s = 1").cordon("gpu-07", "bad").await.unwrap_err();
    assert!(why.contains("did not end within 1 s"), "{why}");
    let hook = Slo::parse("[slo.hook]\nkind = \"slurm\"\nprogram = \"/nonexistent/scontrol\"").unwrap();
    let why = Hook::new(&hook).unwrap().uncordon("gpu-07").await.unwrap_err();
    assert_eq!(why, "/nonexistent/scontrol: there is no such program");
}

#[tokio::test]
async fn names_cannot_become_options() {
    let scheduler = Scheduler::new(&slurm("IDLE", ""));
    let hook = scheduler.hook("slurm", "");
    for name in ["--all", "-o", "a b", "gpu-[01-99]", "a,b", "", "a\nb", "ALL=x"] {
        assert!(hook.cordon(name, "bad").await.is_err(), "{name}");
        assert!(hook.uncordon(name).await.is_err(), "{name}");
    }
    assert!(scheduler.calls().is_empty());
}

#[tokio::test]
async fn a_program_of_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), "own", "for word; do printf '<%s>' \"$word\"; done");
    let text = format!(
        "[slo.hook]\nkind = \"command\"\ncordon = [\"{0}\", \"--host={{node}}\", \"{{reason}}\"]\nuncordon = [\"{0}\", \"{{node}}\", \"x y\"]",
        program.display()
    );
    let hook = Hook::new(&Slo::parse(&text).unwrap()).unwrap();
    let said = hook.cordon("gpu-07", "--force {node} `id`").await.unwrap();
    assert_eq!(said, "<--host=gpu-07><stoker: --force {node} `id`>");
    assert_eq!(hook.uncordon("gpu-07").await.unwrap(), "<gpu-07><x y>");
    assert!(Hook::new(&Slo::default()).is_none());
}

#[test]
fn reasons_are_bounded() {
    assert_eq!(marked("a\u{7}\nb"), "stoker: a b");
    assert_eq!(marked(&"\u{fc}".repeat(10_000)).chars().count(), REASON_MAX);
}
