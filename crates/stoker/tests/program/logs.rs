//! `stoker log pipe` and `stoker logs` against nodes in processes of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use crate::rig::*;

/// A writer of a log whose stdin is a pipe.
fn pipe(rig: &Rig, words: &str) -> Child {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = rig.command(&words);
    command.env_remove("STOKER_JOB").env_remove("SLURMD_NODENAME");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn say(child: &mut Child, text: &str) {
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    stdin.flush().unwrap();
}

/// Ends what it says; its exit code, stdout and stderr.
fn ended(mut child: Child) -> (i32, String, String) {
    drop(child.stdin.take());
    let done = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

#[test]
fn logs_of_a_job_are_followed_while_it_runs() {
    let rig = Rig::new();
    rig.write("job.yaml", b"data: {defaults: false, output: \"s3://data/out/{allocation_id}/\"}\n");
    rig.succeed("job submit job.yaml --id train-7");
    rig.refuse("logs train-7", "nothing was logged in data/out/train-7/logs/", "programs write there");
    let mut follow = rig.command(&["logs", "train-7", "-f"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut followed = BufReader::new(follow.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        followed.read_line(&mut line).unwrap();
        line
    };
    let mut out = pipe(&rig, "log pipe --job train-7 --node gpu-01 --tee");
    let mut err = pipe(&rig, "log pipe --job train-7 --node gpu-01 --stream stderr");
    for step in 0..3 {
        say(&mut out, &format!("step {step}\n"));
        assert_eq!(line(), format!("step {step}\n"));
        say(&mut err, &format!("warning {step}\n"));
        assert_eq!(line(), format!("warning {step}\n"));
    }
    say(&mut out, "no end of line");
    assert_eq!(ended(out), (0, "step 0\nstep 1\nstep 2\nno end of line".into(), String::new()));
    assert_eq!(ended(err), (0, String::new(), String::new()));
    rig.succeed("job end train-7");
    assert_eq!(line(), "no end of line");
    assert_eq!(line(), "");
    assert!(follow.wait().unwrap().success());

    assert_eq!(rig.succeed("logs train-7 --stream stderr").lines(), ["warning 0", "warning 1", "warning 2"]);
    assert_eq!(rig.succeed("logs train-7 --tail 2").lines(), ["warning 2", "no end of line"]);
    assert_eq!(rig.succeed("logs train-7 --grep step --tail 1").lines(), ["step 2"]);
    assert_eq!(rig.succeed("logs train-7 --since 1h").lines().len(), 7);
    rig.refuse("logs --from data/out/train-7 --node gpu-02", "nothing was logged", "");
    let lines = rig.succeed("logs train-7 --json").json_lines();
    assert_eq!((&lines[1]["stream"], &lines[1]["text"]), (&"stderr".into(), &"warning 0".into()));
    assert!(rig.succeed("logs train-7 -t --tail 1").text().ends_with("Z no end of line"));
    let listed = rig.succeed("ls data/out/train-7/logs/ -r").text();
    for name in ["metadata.json", "stdout/gpu-01/chunk_000.log.zst", "stderr/gpu-01/chunk_000.log.zst"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
}

#[test]
fn a_log_outlives_the_loss_of_its_node() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("node");
    let node = Node::up(&dir);
    let rig = Rig { node, folder };
    let mut pipe = pipe(&rig, "log pipe --to data/run --node n --tee");
    let mut stdout = BufReader::new(pipe.stdout.take().unwrap());
    let mut passed = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    say(&mut pipe, "before\n");
    assert_eq!(passed(), "before\n");
    let Rig { node, folder } = rig;
    drop(node);
    // The program goes on as if nothing were.
    for number in 0..2000 {
        say(&mut pipe, &format!("meanwhile {number}\n"));
        assert_eq!(passed(), format!("meanwhile {number}\n"));
    }
    let rig = Rig { node: Node::up(&dir), folder };
    say(&mut pipe, "after\n");
    drop(pipe.stdin.take());
    let code = pipe.wait().unwrap().code();
    let mut words = String::new();
    pipe.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(code, Some(0), "{words}");
    let mut expect = vec!["before".to_owned()];
    expect.extend((0..2000).map(|number| format!("meanwhile {number}")));
    expect.push("after".to_owned());
    assert_eq!(rig.succeed("logs --from data/run").lines(), expect);
}

#[test]
fn a_program_outlives_its_log() {
    let rig = Rig::new();
    // Nobody is there, and the program says more than is kept.
    let away = rig.path("away");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args([
        "log", "pipe", "--to", "data/x", "--node", "n", "--buffer", "1MiB", "--stall", "0s", "--end", "0s",
    ]);
    command.arg("--dir").arg(&away).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    for _ in 0..64 {
        say(&mut child, &"x".repeat(64 << 10));
    }
    let (code, _, words) = ended(child);
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("the log waits: no") || words.contains("the log is not written"), "{words}");

    for (words, why) in [
        ("log pipe --to nowhere/x --node n --tee", "nowhere"),
        ("log pipe --job nobody --node n --tee", "there is no job"),
    ] {
        let mut child = pipe(&rig, words);
        say(&mut child, "some words\n");
        let (code, passed, said) = ended(child);
        assert_eq!((code, passed.as_str()), (1, "some words\n"), "{said}");
        assert!(said.contains(why), "{said}");
    }
    rig.refuse("log pipe --node ../x --to data/x", "cannot be the name of a node", "give one with --node");
    let ran = ran(rig.command(&["log", "pipe"]).env_remove("STOKER_JOB").stdin(Stdio::null()));
    assert!(ran.code == 1 && ran.err.contains("nobody says whose log it is"), "{}", ran.err);
}
