//! Kinds, times and groups as POSIX has them.

use stoker_files::{Attr, Change, Errno, Files, Kind, Make, ROOT, RenameFlag, XattrMode};
use stoker_store::{Awaited, Key, Subject, WriteRequest};

use crate::rig::{MAKE, Rig, close, get, mkdir, names, put, put_object, walk};

async fn attr(files: &Files, path: &str) -> Attr {
    files.getattr(walk(files, path).await.unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_files_are_what_they_are_on_every_node() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let dir = mkdir(&here, ROOT, "dev").await.unwrap();
    let all = [
        ("pipe", Kind::Fifo, 0),
        ("socket", Kind::Socket, 0),
        ("disk", Kind::BlockDevice, 0x0801),
        ("tape", Kind::CharDevice, 0xfff0_1f34),
    ];
    for (name, kind, rdev) in all {
        let made = here.make(dir, name.as_bytes(), kind, Make { rdev, ..MAKE }, b"").await.unwrap();
        assert_eq!((made.kind, made.rdev, made.size), (kind, rdev, 0));
        assert_eq!(here.make(dir, name.as_bytes(), kind, MAKE, b"").await.err(), Some(Errno::EEXIST));
        here.set(made.ino, Change { mode: Some(0o604), ..Change::default() }).await.unwrap();
        here.set_xattr(made.ino, b"trusted.a", b"1", XattrMode::Any).await.unwrap();
        here.link(made.ino, ROOT, name.as_bytes()).await.unwrap();
        here.rename(ROOT, name.as_bytes(), dir, b"moved", RenameFlag::Replace).await.unwrap();
        let seen = attr(&there, "dev/moved").await;
        assert_eq!((seen.kind, seen.rdev, seen.mode, seen.uid, seen.nlink), (kind, rdev, 0o604, 7, 2));
        // What they are kept by is nobody's extended attribute.
        assert_eq!(there.xattrs(seen.ino).unwrap(), [b"trusted.a"]);
        let own = b"system.stoker.rdev";
        assert_eq!(there.xattr(seen.ino, own), Err(Errno::EOPNOTSUPP));
        assert_eq!(there.remove_xattr(seen.ino, own).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(there.set_xattr(seen.ino, own, b"", XattrMode::Any).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(there.open_file(seen.ino, false).await.err(), Some(Errno::EINVAL));
        assert_eq!(there.truncate(seen.ino, 0).await.err(), Some(Errno::EINVAL));
        there.unlink(walk(&there, "dev").await.unwrap(), b"moved").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_that_were_set_are_kept() {
    const S: i64 = 1_000_000_000;
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    put(&here, ROOT, "f", b"bytes").await.unwrap();
    mkdir(&here, ROOT, "dir").await.unwrap();
    for name in ["f", "dir"] {
        let ino = walk(&here, name).await.unwrap();
        let check = async |mtime_ns, atime_ns, expect: (i64, i64)| {
            let change = Change { mtime_ns, atime_ns, ..Change::default() };
            let set = here.set(ino, change).await.unwrap();
            let seen = attr(&there, name).await;
            for attr in [set, here.getattr(ino).await.unwrap(), seen] {
                assert_eq!((attr.mtime_ns, attr.atime_ns), expect, "{name}");
            }
        };
        check(Some(5 * S), Some(7 * S + 1), (5 * S, 7 * S + 1)).await;
        check(None, Some(-3 * S - 7), (5 * S, -3 * S - 7)).await;
        check(Some(1 << 61), None, (1 << 61, -3 * S - 7)).await;
        check(Some(-1), Some(-1), (-1, -1)).await;
        check(Some(3 << 31), None, (3 << 31, -1)).await;
    }
    // Also while bytes wait, and in one publish with them.
    let ino = walk(&here, "f").await.unwrap();
    let handle = here.open_file(ino, false).await.unwrap();
    here.write(&handle, 0, b"B", false).await.unwrap();
    assert_eq!(here.getattr(ino).await.unwrap().atime_ns, -1);
    here.set(ino, Change { atime_ns: Some(S), mtime_ns: Some(S), ..Change::default() }).await.unwrap();
    close(&here, handle).await.unwrap();
    let seen = attr(&there, "f").await;
    assert_eq!((seen.mtime_ns, seen.atime_ns), (S, S));
}

/// It does not with a publish: that is no change for who made the change before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_change_moves_with_a_change_alone() {
    let rig = Rig::new().await;
    let files = rig.files("here").await;
    let (made, handle) = files.create(ROOT, b"f", MAKE, false).await.unwrap();
    close(&files, handle).await.unwrap();
    let dir = mkdir(&files, ROOT, "dir").await.unwrap();
    let dir_made = files.peek(dir).unwrap();
    let ctime = async |ino| files.getattr(ino).await.unwrap().ctime_ns;
    for _ in 0..3 {
        assert_eq!(ctime(made.ino).await, made.ctime_ns);
        assert_eq!(ctime(dir).await, dir_made.ctime_ns);
        let handle = files.open_file(made.ino, false).await.unwrap();
        close(&files, handle).await.unwrap();
    }
    // What fails changes nothing.
    assert!(files.truncate(made.ino, u64::MAX).await.is_err());
    assert!(files.link(made.ino, ROOT, b"dir").await.is_err());
    assert!(files.rename(ROOT, b"f", ROOT, b"dir", RenameFlag::Replace).await.is_err());
    assert_eq!(ctime(made.ino).await, made.ctime_ns);
    let mut last = made.ctime_ns;
    let mut check = async |what: &str| {
        let now = ctime(made.ino).await;
        assert!(now > last, "{what}");
        assert_eq!(ctime(made.ino).await, now, "{what}");
        last = now;
    };
    files.set(made.ino, Change { mode: Some(0o600), ..Change::default() }).await.unwrap();
    check("chmod").await;
    files.set(made.ino, Change { mtime_ns: Some(1), ..Change::default() }).await.unwrap();
    check("utimes").await;
    files.set_xattr(made.ino, b"user.a", b"", XattrMode::Any).await.unwrap();
    check("setxattr").await;
    files.link(made.ino, dir, b"second").await.unwrap();
    check("link").await;
    files.unlink(dir, b"second").await.unwrap();
    check("unlink").await;
    files.rename(ROOT, b"f", dir, b"f", RenameFlag::Replace).await.unwrap();
    check("rename").await;
    files.truncate_closed(made.ino, 0).await.unwrap();
    check("truncate to the length that it has").await;
    assert_ne!(attr(&files, "dir/f").await.mtime_ns, 1);
    // A publish by somebody else is a change.
    let there = rig.remote("there").await;
    put(&there, walk(&there, "dir").await.unwrap(), "f", b"other").await.unwrap();
    check("a publish elsewhere").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_in_a_set_group_directory_belongs_to_its_group() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let dir = mkdir(&here, ROOT, "dir").await.unwrap();
    here.set(dir, Change { mode: Some(0o2775), gid: Some(50), ..Change::default() }).await.unwrap();
    put(&here, dir, "f", b"bytes").await.unwrap();
    let sub = mkdir(&here, dir, "sub").await.unwrap();
    here.make(sub, b"pipe", Kind::Fifo, MAKE, b"").await.unwrap();
    here.make(sub, b"link", Kind::Symlink, Make { mode: 0o777, ..MAKE }, b"x").await.unwrap();
    let check = async |path, mode, gid| {
        let seen = attr(&there, path).await;
        assert_eq!((seen.mode, seen.uid, seen.gid), (mode, 7, gid), "{path}");
    };
    check("dir/f", 0o640, 50).await;
    check("dir/sub", 0o2755, 50).await;
    check("dir/sub/pipe", 0o640, 50).await;
    check("dir/sub/link", 0o777, 50).await;
    let plain = mkdir(&here, ROOT, "plain").await.unwrap();
    put(&here, plain, "f", b"").await.unwrap();
    check("plain/f", 0o640, 8).await;
}

/// S3 knows no such key, and the lake none: the file is here, says why, and can be moved to a shorter path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_may_be_longer_than_a_key_of_s3() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let name = "n".repeat(255);
    let mut at = ROOT;
    // 15 directories of 256 bytes with their slash, and what is left of 4,095.
    for _ in 0..15 {
        at = mkdir(&here, at, &name).await.unwrap();
    }
    let last = "f".repeat(255);
    put(&here, at, &last, b"bytes").await.unwrap();
    assert_eq!(
        here.create(at, "f".repeat(256).as_bytes(), MAKE, false).await.err(),
        Some(Errno::ENAMETOOLONG)
    );
    let deepest = mkdir(&here, at, &name).await.unwrap();
    assert_eq!(mkdir(&here, deepest, "x").await.err(), Some(Errno::ENAMETOOLONG));
    assert_eq!(here.create(deepest, b"x", MAKE, false).await.err(), Some(Errno::ENAMETOOLONG));
    let path = [vec![name.clone(); 15].join("/"), last.clone()].join("/");
    assert_eq!(path.len(), 4095);
    assert_eq!(get(&there, &path).await.unwrap(), b"bytes");
    assert_eq!(names(&there, walk(&there, &path[..path.len() - 256]).await.unwrap()).await.len(), 2);
    let key = Key::new(path.as_str()).unwrap();
    rig.store().drain("data", b"").await.unwrap();
    let fault = rig.store().wait("data", &key, None, Awaited::Drained).await.unwrap_err();
    assert!(fault.subject == Subject::Lake && fault.message.contains("1 to 1024 bytes"), "does not say why");
    // Doors that know keys alone are told before they write.
    let refused = rig.store().create("data", &key, WriteRequest::default()).await;
    assert_eq!(refused.err().map(|fault| fault.subject), Some(Subject::Lake));
    here.set(walk(&here, &path).await.unwrap(), Change { mode: Some(0o600), ..Change::default() })
        .await
        .unwrap();
    here.link(walk(&here, &path).await.unwrap(), ROOT, b"second").await.unwrap();
    here.rename(at, last.as_bytes(), ROOT, b"short", RenameFlag::Replace).await.unwrap();
    rig.store().drain("data", b"").await.unwrap();
    for name in ["short", "second"] {
        rig.store().wait("data", &Key::new(name).unwrap(), None, Awaited::Drained).await.unwrap();
    }
    here.rename(ROOT, b"short", at, last.as_bytes(), RenameFlag::Replace).await.unwrap();
    // Whoever gets the name that it had in the lake does not wait for it for ever.
    put(&here, ROOT, "short", b"another").await.unwrap();
    rig.store().drain("data", b"").await.unwrap();
    rig.store().wait("data", &Key::new("short").unwrap(), None, Awaited::Drained).await.unwrap();
    assert_eq!(get(&there, &path).await.unwrap(), b"bytes");
    here.rmdir(at, name.as_bytes()).await.unwrap();
    there.unlink(walk(&there, &path[..path.len() - 256]).await.unwrap(), last.as_bytes()).await.unwrap();
    assert_eq!(get(&here, "second").await.unwrap(), b"bytes");
}

/// Of two that remove a directory and make something in it, one fails, and nothing is left of what failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_goes_or_gets_an_entry() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let mut gone = 0;
    for round in 0..200 {
        let name = format!("dir{round}");
        let make = Make { mode: 0o711, ..MAKE };
        let dir = here.make(ROOT, name.as_bytes(), Kind::Directory, make, b"").await.unwrap().ino;
        assert_eq!(walk(&there, &name).await, Ok(dir));
        let enter = async {
            match round % 4 {
                0 => put(&there, dir, "f", b"bytes").await,
                1 => there.make(dir, b"f", Kind::Directory, MAKE, b"").await.map(drop),
                2 => there.make(dir, b"f", Kind::Fifo, MAKE, b"").await.map(drop),
                _ => {
                    let (_, handle) = there.create(dir, b"f", MAKE, true).await?;
                    close(&there, handle).await
                }
            }
        };
        let (removed, entered) = tokio::join!(here.rmdir(ROOT, name.as_bytes()), enter);
        match (removed, entered) {
            (Ok(()), Err(Errno::ENOENT | Errno::ESTALE)) => {
                gone += 1;
                for files in [&here, &there] {
                    assert_eq!(walk(files, &name).await, Err(Errno::ENOENT));
                }
            }
            (Err(Errno::ENOTEMPTY), Ok(())) => {
                for files in [&here, &there] {
                    assert!(walk(files, &format!("{name}/f")).await.is_ok());
                    assert_eq!(attr(files, &name).await.mode, 0o711);
                }
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
    let left = names(&here, ROOT).await.len();
    assert_eq!(left, 200 - gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_in_a_directory_that_is_gone() {
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let dir = mkdir(&here, ROOT, "dir").await.unwrap();
    walk(&there, "dir").await.unwrap();
    // It waits to be published while its directory goes.
    let (_, handle) = there.create(dir, b"waits", MAKE, false).await.unwrap();
    there.write(&handle, 0, b"bytes", false).await.unwrap();
    here.rmdir(ROOT, b"dir").await.unwrap();
    assert_eq!(close(&there, handle).await, Err(Errno::ESTALE));
    assert!(there.lookup(dir, b"waits").await.is_err());
    for kind in [Kind::Directory, Kind::Fifo, Kind::Symlink, Kind::File] {
        let made = there.make(dir, b"new", kind, MAKE, b"x").await;
        assert!(matches!(made, Err(Errno::ENOENT | Errno::ESTALE)), "{kind:?}: {made:?}");
    }
    let made = there.create(dir, b"new", MAKE, true).await.map(drop);
    assert!(matches!(made, Err(Errno::ENOENT | Errno::ESTALE)), "{made:?}");
    assert_eq!(
        (walk(&here, "dir").await, walk(&there, "dir").await),
        (Err(Errno::ENOENT), Err(Errno::ENOENT))
    );
    // S3 makes the directories of what it writes, and a directory that only keys imply can be used.
    put_object(&rig, "dir/sub/key", b"bytes").await;
    let sub = walk(&there, "dir/sub").await.unwrap();
    put(&there, sub, "f", b"bytes").await.unwrap();
    mkdir(&there, sub, "d").await.unwrap();
    assert_eq!(here.rmdir(walk(&here, "dir").await.unwrap(), b"sub").await, Err(Errno::ENOTEMPTY));
}

/// A list as Linux has it: who it is for, what they may do, and which user or group that is.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, bits, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_who_may_use_something_go_with_it() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    const NOBODY: u32 = u32::MAX;
    let rig = Rig::new().await;
    let (here, there) = (rig.files("here").await, rig.remote("there").await);
    let rich = |own: u16, mask: u16, others: u16| {
        let named = [(0x02, 6, 5), (0x04, 4, NOBODY), (0x10, mask, NOBODY), (0x20, others, NOBODY)];
        list(&[&[(0x01, own, NOBODY)][..], &named].concat())
    };
    let dir = mkdir(&here, ROOT, "dir").await.unwrap();
    here.set_xattr(dir, DEFAULT, &rich(7, 6, 0), XattrMode::Any).await.unwrap();
    // What is made gets no more than it asks for; the umask counts elsewhere alone.
    let make = Make { mode: 0o666, umask: 0o077, ..MAKE };
    let (made, handle) = here.create(dir, b"file", make, false).await.unwrap();
    assert_eq!(made.mode, 0o660);
    here.write(&handle, 0, b"bytes", false).await.unwrap();
    // Also while its bytes wait.
    here.set(made.ino, Change { mode: Some(0o640), ..Change::default() }).await.unwrap();
    close(&here, handle).await.unwrap();
    let below = here.make(dir, b"below", Kind::Directory, make, b"").await.unwrap();
    assert_eq!(here.xattr(below.ino, DEFAULT).unwrap(), rich(7, 6, 0));
    let (plain, handle) = here.create(ROOT, b"plain", make, true).await.unwrap();
    close(&here, handle).await.unwrap();
    assert_eq!(plain.mode, 0o600);
    let seen = attr(&there, "dir/file").await;
    assert_eq!((seen.mode, there.xattr(seen.ino, ACCESS).unwrap()), (0o640, rich(6, 4, 0)));
    assert!(there.acl(seen.ino).unwrap().allows(5, |_| false, seen.gid, 4));
    assert!(!there.acl(seen.ino).unwrap().allows(5, |_| false, seen.gid, 2), "the mask");

    // Mode and list change together, and one that the mode can say goes.
    there.set_xattr(seen.ino, ACCESS, &rich(7, 7, 5), XattrMode::Any).await.unwrap();
    let again = attr(&here, "dir/file").await;
    assert_eq!(again.mode, 0o775);
    here.set(again.ino, Change { mode: Some(0o2751), ..Change::default() }).await.unwrap();
    let again = attr(&there, "dir/file").await;
    assert_eq!((again.mode, there.xattr(again.ino, ACCESS).unwrap()), (0o2751, rich(7, 5, 1)));
    let small = list(&[(0x01, 6, NOBODY), (0x04, 4, NOBODY), (0x20, 2, NOBODY)]);
    there.set_xattr(again.ino, ACCESS, &small, XattrMode::Any).await.unwrap();
    let again = attr(&here, "dir/file").await;
    assert_eq!((again.mode, here.xattr(again.ino, ACCESS)), (0o2642, Err(Errno::ENODATA)));
    assert!(here.acl(again.ino).is_none());

    let refused = async |name: &[u8], value: &[u8], errno| {
        assert_eq!(here.set_xattr(again.ino, name, value, XattrMode::Any).await, Err(errno));
    };
    refused(DEFAULT, &small, Errno::EACCES).await;
    refused(ACCESS, &small[..10], Errno::EINVAL).await;
    refused(ACCESS, &list(&[(0x01, 6, NOBODY)]), Errno::EINVAL).await;
    refused(ACCESS, b"", Errno::EINVAL).await;
}
