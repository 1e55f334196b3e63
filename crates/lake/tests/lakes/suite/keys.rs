//! Keys as users make them, and as nobody should.

use proptest::prelude::*;

/// Which keys a lake holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Everything that is legal in S3.
    Legal,
    /// Any bytes.
    Raw,
    /// What an S3 server that keeps its keys in directories can hold and list in order: no empty or dot
    /// segments, no object beside a directory of the same name, no directories like `d` and `d-`.
    Tame,
}

/// A few keys that clash with each other as often as possible.
pub fn pool(kind: KeyKind) -> BoxedStrategy<Vec<Vec<u8>>> {
    let key = match kind {
        KeyKind::Legal => legal().boxed(),
        KeyKind::Raw => prop_oneof![legal(), prop::collection::vec(any::<u8>(), 1..9)].boxed(),
        KeyKind::Tame => tame().boxed(),
    };
    prop::collection::vec(key, 1..7)
        .prop_flat_map(move |keys| {
            let count = keys.len();
            (Just(keys), prop::collection::vec((0..count, 0..5usize), 0..4))
        })
        .prop_map(move |(mut keys, relatives)| {
            for (index, how) in relatives {
                if kind != KeyKind::Tame
                    && let Some(key) = relative(&keys[index], how)
                {
                    keys.push(key);
                }
            }
            keys.sort();
            keys.dedup();
            keys
        })
        .boxed()
}

/// A key that is in the way of another.
fn relative(key: &[u8], how: usize) -> Option<Vec<u8>> {
    let mut key = key.to_vec();
    match how {
        0 => key.extend_from_slice(b"/x"),
        1 => key.push(b'/'),
        2 => key.extend_from_slice(b"-"),
        3 => key.truncate(key.iter().position(|&byte| byte == b'/')?),
        _ => key.truncate(key.iter().rposition(|&byte| byte == b'/')?),
    }
    (1..=1024).contains(&key.len()).then_some(key)
}

fn legal() -> impl Strategy<Value = Vec<u8>> {
    let long = |len: usize, last: char| {
        let mut text = "l".repeat(len - 1);
        text.push(last);
        text
    };
    let segment = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "foo", "a-b", "a0", "a.b", "aa"]).prop_map(str::to_owned),
        3 => prop::sample::select(vec!["", "", ".", "..", "...", " ", "+", "%", "%2F", "50%25", "\\", "\0", "\n", "\u{7f}", "\u{1f525}", "?x=y", "#", "&<>\"'", "\u{e9}", "\u{ffff}"])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec![".stoker-tmp", ".stoker-meta", ".stoker-n", ".stoker-fa", ".stoker-nfoo", ".stoker-", ".stoker-p", ".stoker"])
            .prop_map(str::to_owned),
        1 => (prop::sample::select(vec![200usize, 239, 240, 241, 246, 247, 254, 255, 256, 300, 500]), prop::sample::select(vec!['l', 'k', 'm', '\0']))
            .prop_map(move |(len, last)| long(len, last)),
        1 => "\\PC{1,6}".prop_map(|text| text.replace('/', "")),
    ];
    prop::collection::vec(segment, 1..5)
        .prop_map(|segments| segments.join("/").into_bytes())
        .prop_filter("1 to 1024 bytes", |key| (1..=1024).contains(&key.len()))
}

fn tame() -> impl Strategy<Value = Vec<u8>> {
    // Directories and files have different names, so that no object is in the way of another.
    let dir = prop::sample::select(vec!["d1", "d10", "d 2", "d+3", "d%4", "d\u{e9}", "d\u{1f525}"]);
    let file = prop::sample::select(vec![
        "a",
        "a-b",
        "a.b",
        "a0",
        "a b",
        "a+b",
        "a%20b",
        "a%",
        "\u{1f525}",
        "a&b=c",
        "a#",
        "a?",
        "a<b>",
        "a'\"",
        "a~*(!)",
        "a@:;,$",
    ]);
    (prop::collection::vec(dir, 0..3), file).prop_map(|(dirs, file)| {
        let mut key = dirs.join("/");
        if !key.is_empty() {
            key.push('/');
        }
        key.push_str(file);
        key.into_bytes()
    })
}
