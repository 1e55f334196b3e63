//! Options of mount(8), as `mount -t stoker` and /etc/fstab give them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{Rig, mount, stoker};

/// `deploy/mount.stoker`, as mount(8) calls it.
fn mount_stoker(rig: &Rig, options: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_stoker")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let node = rig.dir.path().join("node");
    let options = format!("dir={},{options}", node.display());
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/mount.stoker"))
        .env("PATH", path)
        .args(["files", rig.path("").to_str().unwrap(), "-n", "-o", &options])
        .output()
        .unwrap()
}

/// What the kernel says of a mount.
pub(super) fn shown(at: &Path) -> String {
    let at = at.to_str().unwrap().trim_end_matches('/');
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at));
    line.and_then(|line| line.split(' ').nth(3)).unwrap_or_default().to_owned()
}

#[test]
fn options_of_mount_are_kept_to() {
    let Some(mut rig) = Rig::new() else { return };
    let mnt = rig.path("");
    fs::write(mnt.join("run"), "#!/bin/sh\necho it ran\n").unwrap();
    fs::set_permissions(mnt.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(Command::new(mnt.join("run")).output().unwrap().stdout, b"it ran\n");
    stoker(rig.dir.path(), &["umount", mnt.to_str().unwrap()]);
    assert!(rig.mount.wait().unwrap().success());

    let check = |options: &str, expect: &[&str], not: &[&str]| {
        let done = mount_stoker(&rig, options);
        assert!(done.status.success(), "{options}: {}", String::from_utf8_lossy(&done.stderr));
        let found = shown(&mnt);
        let words: Vec<&str> = found.split(',').collect();
        assert!(expect.iter().all(|word| words.contains(word)), "{options}: {found}");
        assert!(!not.iter().any(|word| words.contains(word)), "{options}: {found}");
        let ran = Command::new(mnt.join("run")).output();
        let wrote = fs::write(mnt.join("new"), "bytes");
        stoker(rig.dir.path(), &["umount", mnt.to_str().unwrap()]);
        (ran.map(|_| ()).map_err(|error| error.raw_os_error()), wrote.map_err(|error| error.raw_os_error()))
    };
    let (ran, wrote) =
        check("ro,noexec,nosuid,nodev,_netdev,x-a=b", &["ro", "noexec", "nosuid", "nodev"], &[]);
    assert_eq!((ran, wrote), (Err(Some(libc::EACCES)), Err(Some(libc::EROFS))));
    let (ran, wrote) = check("users,noatime", &["rw", "noexec", "nosuid", "nodev"], &[]);
    assert_eq!((ran, wrote), (Err(Some(libc::EACCES)), Ok(())));
    let (ran, wrote) = check("users,exec,suid,sync,cache=0", &["rw", "sync", "nodev"], &["noexec", "nosuid"]);
    assert_eq!((ran, wrote), (Ok(()), Ok(())));

    // Who asks for what is not there hears of it, and nothing is mounted.
    for options in ["nosymfollow", "dev", "remount,ro", "cahce=1", "cache=-1"] {
        let done = mount_stoker(&rig, options);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && !said.is_empty(), "{options}: {said}");
        assert_eq!(shown(&mnt), "", "{options}");
    }
}

/// The process of a mount that was taken away may be slow to end, and somebody else is on its directory by then.
#[test]
fn a_mount_that_ends_leaves_its_successor_alone() {
    let Some(mut rig) = Rig::new() else { return };
    let mnt = rig.path("");
    let signal = |name: &str, process: u32| {
        assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
    };
    let first = rig.mount.id();
    signal("-STOP", first);
    stoker(rig.dir.path(), &["umount", "--lazy", mnt.to_str().unwrap()]);
    let successor = mount(rig.dir.path(), &[]);
    let mut first = std::mem::replace(&mut rig.mount, successor);
    signal("-CONT", first.id());
    assert!(first.wait().unwrap().success());
    assert_ne!(shown(&mnt), "");
    fs::write(mnt.join("f"), "bytes").unwrap();
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"bytes");
}
