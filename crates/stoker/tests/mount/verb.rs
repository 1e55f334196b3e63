//! `stoker mount` as a command: when it returns, several volumes, signals.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;

use super::options::shown;
use super::{Rig, mount, stoker};

fn command(rig: &Rig) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.env("STOKER_DIR", rig.dir.path().join("node")).current_dir(rig.dir.path()).arg("mount");
    command
}

fn terminate(process: u32) {
    assert!(Command::new("kill").args(["-TERM", &process.to_string()]).status().unwrap().success());
}

/// Without a mount on the directory of the rig.
fn unmounted() -> Option<Rig> {
    let mut rig = Rig::new()?;
    stoker(rig.dir.path(), &["umount", rig.path("").to_str().unwrap()]);
    assert!(rig.mount.wait().unwrap().success());
    Some(rig)
}

#[test]
fn it_returns_when_the_volume_can_be_used() {
    let Some(rig) = unmounted() else { return };
    for args in [&["files", "mnt"][..], &["--background", "--log-file", "mount.log", "files", "mnt"]] {
        // Also for who waits for the end of what it says.
        let done = command(&rig).args(args).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(String::from_utf8_lossy(&done.stdout).starts_with("mounted files on "));
        fs::write(rig.path("f"), "bytes").unwrap();
        assert_eq!(fs::read(rig.path("f")).unwrap(), b"bytes");
        stoker(rig.dir.path(), &["umount", rig.path("").to_str().unwrap()]);
        assert_eq!(shown(&rig.path("")), "");
    }
    let check = |args: &[&str], part: &str| {
        let done = command(&rig).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(part), "{args:?}: {said}");
        assert_eq!(shown(&rig.path("")), "");
    };
    check(&["nothing", "mnt"], "nothing");
    check(&["files", "mnt/nowhere"], "nowhere");
    check(&["files", "mnt", "files"], "no directory");
    check(&["files", "mnt", "files", "mnt/../mnt"], "named twice");
}

#[test]
fn one_process_serves_several_volumes() {
    let Some(mut rig) = unmounted() else { return };
    stoker(rig.dir.path(), &["volume", "create", "more"]);
    let second = rig.dir.path().join("second");
    fs::create_dir(&second).unwrap();
    // All or none.
    let done = command(&rig).args(["files", "mnt", "nothing", "second"]).output().unwrap();
    assert!(!done.status.success());
    assert_eq!((shown(&rig.path("")), shown(&second)), (String::new(), String::new()));

    rig.mount = mount(rig.dir.path(), &["more", second.to_str().unwrap()]);
    fs::write(rig.path("f"), "of files").unwrap();
    fs::write(second.join("f"), "of more").unwrap();
    assert_eq!(
        (fs::read(rig.path("f")).unwrap(), fs::read(second.join("f")).unwrap()),
        (b"of files".to_vec(), b"of more".to_vec())
    );
    // One goes, the other one is served.
    stoker(rig.dir.path(), &["umount", second.to_str().unwrap()]);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"of files");
    terminate(rig.mount.id());
    assert!(rig.mount.wait().unwrap().success());
    assert_eq!((shown(&rig.path("")), shown(&second)), (String::new(), String::new()));
}

#[test]
fn a_signal_loses_nothing_of_what_is_open() {
    let Some(mut rig) = Rig::new() else { return };
    let mut open = OpenOptions::new().create(true).append(true).open(rig.path("f")).unwrap();
    open.write_all(b"before, ").unwrap();
    terminate(rig.mount.id());
    while !shown(&rig.path("")).is_empty() {
        std::thread::yield_now();
    }
    assert!(rig.mount.try_wait().unwrap().is_none(), "it serves what is open");
    open.write_all(b"after").unwrap();
    drop(open);
    assert!(rig.mount.wait().unwrap().success());
    rig.mount = mount(rig.dir.path(), &[]);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"before, after");
}
