use proptest::prelude::*;

use super::*;

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, bytes) in files {
        let head = header(name.as_bytes(), bytes.len() as u64, 1_700_000_000);
        assert_eq!(head.len() as u64, header_len(name.as_bytes()), "{name}");
        tar.extend_from_slice(&head);
        tar.extend_from_slice(bytes);
        tar.resize(tar.len().next_multiple_of(BLOCK as usize), 0);
    }
    tar
}

/// Drives a scanner over bytes as a stranger would.
fn scan(mut scanner: Scanner, bytes: &[u8]) -> stoker_store::Result<Vec<Member>> {
    let mut found = Vec::new();
    while let Some((at, len)) = scanner.wants()? {
        found.extend(scanner.take(&bytes[at as usize..][..len])?);
    }
    Ok(found)
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{1,3}(/[a-c]{1,3}){0,2}\\.[a-z]{1,3}",
        "[a-zä]{60,140}(/[a-zö]{1,140}){0,4}",
        "x{95,105}"
    ]
}

proptest! {
    #[test]
    fn members_are_found_as_they_were_written(
        files in prop::collection::vec((names(), prop::collection::vec(any::<u8>(), 0..1500)), 0..8)
    ) {
        let tar = tar_of(&files);
        let found = members(&tar).unwrap();
        let shown: Vec<_> = found.iter().map(|member| {
            let bytes = tar[member.data as usize..][..member.size as usize].to_vec();
            (String::from_utf8(member.name.clone()).unwrap(), bytes)
        }).collect();
        prop_assert_eq!(shown, files);
        let mut end = 0;
        for member in found {
            prop_assert_eq!(member.start, end);
            end = member.end;
        }
        prop_assert_eq!(end, tar.len() as u64);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..4096),
        at in 0usize..4, fix in any::<bool>()
    ) {
        let start = at * 512;
        if fix && bytes.len() >= start + 512 {
            fix_sum(&mut bytes[start..start + 512]);
        }
        let len = bytes.len() as u64;
        let _ = (scan(Scanner::whole(len), &bytes), scan(Scanner::piece(len), &bytes));
    }

    #[test]
    fn a_tar_with_a_changed_byte_never_panics(at in 0usize..4096, byte in any::<u8>(), fix in any::<bool>()) {
        let files = [("n".repeat(300) + ".txt", vec![7; 600]), ("b.txt".to_owned(), vec![1; 10])];
        let mut tar = tar_of(&files);
        let at = at % tar.len();
        tar[at] = byte;
        if fix {
            let start = at / 512 * 512;
            fix_sum(&mut tar[start..start + 512]);
        }
        let _ = members(&tar);
    }
}

fn fix_sum(head: &mut [u8]) {
    head[257..262].copy_from_slice(b"ustar");
    head[148..156].fill(b' ');
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn a_whole_tar_has_its_end_mark() {
    let mut tar = tar_of(&[("a.txt".to_owned(), vec![1; 700])]);
    let fault = scan(Scanner::whole(tar.len() as u64), &tar).unwrap_err();
    assert!(fault.message.contains("end mark"), "{fault}");
    tar.extend_from_slice(&[0; END_LEN as usize]);
    assert_eq!(scan(Scanner::whole(tar.len() as u64), &tar).unwrap().len(), 1);
    for len in [tar.len() - 1500, 600, 512, 100] {
        assert!(scan(Scanner::whole(len as u64), &tar[..len]).is_err(), "{len}");
    }
}

#[test]
fn lengths_are_not_believed() {
    let good = tar_of(&[("a.txt".to_owned(), vec![1; 700])]);
    let check = |field: &[u8], word: &str| {
        let mut tar = good.clone();
        tar[124..136].copy_from_slice(field);
        fix_sum(&mut tar[..512]);
        let fault = members(&tar).unwrap_err();
        assert!(fault.message.contains(word), "{fault}");
    };
    check(b"77777777777\0", "behind the end");
    check(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", "behind the end");
    check(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "no number");
    check(b"0000000128x\0", "no number");
}

#[test]
fn records_of_pax_are_bounded() {
    let record = |text: &str| {
        let mut tar = header(b"PaxHeaders/x", text.len() as u64, 0);
        tar[156] = b'x';
        fix_sum(&mut tar[..512]);
        tar.extend_from_slice(text.as_bytes());
        tar.resize(tar.len().next_multiple_of(512), 0);
        tar.extend(tar_of(&[("a.txt".to_owned(), vec![1; 10])]));
        members(&tar)
    };
    assert_eq!(record("16 path=b/c.png\n").unwrap()[0].name, b"b/c.png");
    assert_eq!(record("16 xxxx=b/c.png\n").unwrap()[0].name, b"a.txt");
    for text in
        ["99 path=b\n", "0 path=b\n", "x path=b\n", "+9 path=b\n", "9 path=bc", "16 size=99999999\n", "\n"]
    {
        assert!(record(text).is_err(), "{text}");
    }
    // A header without its member.
    let long = header("y".repeat(200).as_bytes(), 0, 0);
    assert!(members(&long[..long.len() - 512]).is_err());
}

#[test]
fn stems_end_at_the_first_dot_of_the_last_part() {
    for (name, expect, shown) in [
        ("a.jpg", "a", true),
        ("a.seg.png", "a", true),
        ("v1.0/a.jpg", "v1.0/a", true),
        ("v1.0/a", "v1.0/a", false),
        ("a", "a", false),
        (".hidden", "", false),
        ("d/.hidden", "d/", false),
        ("", "", false),
    ] {
        assert_eq!(stem(name.as_bytes()), expect.as_bytes(), "{name}");
        assert_eq!(has_extension(name.as_bytes()), shown, "{name}");
    }
}
