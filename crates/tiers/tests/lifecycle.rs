//! Lifecycle rules: what they refuse, when something is due, and that a scan in any pages decides what a look at everything at once does.

use proptest::collection::vec;
use proptest::prelude::*;
use stoker_tiers::lifecycle::*;

const HOUR_MS: u64 = 3_600_000;

fn rule(id: &str) -> Rule {
    Rule { id: id.to_owned(), is_enabled: true, ..Rule::default() }
}

fn days(id: &str, days: u32) -> Rule {
    Rule { expiration: Some(Expiration::Days(days)), ..rule(id) }
}

fn below(prefix: &str) -> Filter {
    Filter { prefix: Some(prefix.to_owned()), ..Filter::default() }
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    use FaultKind::{Argument, Malformed, Request};
    let tag = |name: &str| (name.to_owned(), "v".to_owned());
    let filtered = |filter: Filter| vec![Rule { filter, ..days("a", 1) }];
    let former = |days, newer| vec![Rule { former: Some(FormerExpiration { days, newer }), ..rule("a") }];
    let tagged = Filter { tags: vec![tag("t")], ..Filter::default() };
    for (rules, expected) in [
        (vec![days("a", 1)], None),
        (vec![], Some(Malformed)),
        (vec![rule("a")], Some(Request)),
        (vec![days("a", 0)], Some(Argument)),
        (vec![days("a", 1), days("a", 2)], Some(Argument)),
        (vec![days(&"i".repeat(ID_LEN_MAX), 1)], None),
        (vec![days(&"i".repeat(ID_LEN_MAX + 1), 1)], Some(Argument)),
        ((0..=RULES_MAX).map(|number| days(&number.to_string(), 1)).collect(), Some(Malformed)),
        (vec![Rule { expiration: Some(Expiration::Date(DAY_MS)), ..rule("a") }], None),
        (vec![Rule { expiration: Some(Expiration::Date(DAY_MS + 1)), ..rule("a") }], Some(Argument)),
        (former(1, 0), None),
        (former(0, 0), Some(Argument)),
        (former(1, 100), None),
        (former(1, 101), Some(Argument)),
        (vec![Rule { abort_days: Some(0), ..rule("a") }], Some(Argument)),
        (vec![Rule { abort_days: Some(1), filter: tagged.clone(), ..rule("a") }], Some(Request)),
        (
            vec![Rule { expiration: Some(Expiration::LoneMarker(true)), filter: tagged, ..rule("a") }],
            Some(Request),
        ),
        (filtered(below(&"p".repeat(PREFIX_LEN_MAX + 1))), Some(Request)),
        (filtered(Filter { form: Form::Prefix, ..Filter::default() }), Some(Malformed)),
        (filtered(Filter { form: Form::And, ..below("p") }), Some(Malformed)),
        (filtered(Filter { form: Form::And, tags: vec![tag("a"), tag("b")], ..Filter::default() }), None),
        (
            filtered(Filter { form: Form::And, tags: vec![tag("a"), tag("a")], ..Filter::default() }),
            Some(Request),
        ),
        (filtered(Filter { larger: Some(5), smaller: Some(5), ..below("") }), Some(Request)),
        (filtered(Filter { larger: Some(5), smaller: Some(6), ..below("") }), None),
        (filtered(Filter { smaller: Some(0), ..below("") }), Some(Request)),
    ] {
        let lifecycle = Lifecycle { rules };
        assert_eq!(
            lifecycle.check().err().map(|fault| fault.kind),
            expected,
            "{:?}",
            lifecycle.rules.first()
        );
    }
}

#[test]
fn days_end_at_midnight() {
    let calendar = Calendar::default();
    for (since_ms, days, due_ms) in [
        (0, 1, DAY_MS),
        (1, 1, 2 * DAY_MS),
        (10 * HOUR_MS, 3, 4 * DAY_MS),
        (DAY_MS, 1, 2 * DAY_MS),
        (u64::MAX, 1, u64::MAX / DAY_MS * DAY_MS + DAY_MS.min(u64::MAX - u64::MAX / DAY_MS * DAY_MS)),
    ] {
        assert_eq!(calendar.due_ms(since_ms, days), due_ms, "{since_ms} {days}");
    }
    assert_eq!(Calendar::of(10).due_ms(3, 2), 23);
}

#[test]
fn rules_are_read_as_they_are_written_and_what_is_unknown_is_refused() {
    let filter =
        Filter { form: Form::And, larger: Some(1), tags: vec![("a".into(), "b".into())], ..below("p/") };
    let all = Lifecycle {
        rules: vec![
            Rule { filter, former: Some(FormerExpiration { days: 2, newer: 3 }), ..days("one", 1) },
            Rule {
                expiration: Some(Expiration::Date(DAY_MS)),
                abort_days: Some(7),
                is_enabled: false,
                ..rule("two")
            },
        ],
    };
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Lifecycle>(&text).unwrap(), all, "{text}");
    for text in [
        r#"{"rules":[{"id":"a","on":true,"filter":{"prefix":"a","storage":"cold"},"expiration":{"days":1}}]}"#,
        r#"{"rules":[{"id":"a","on":true,"unless":1,"expiration":{"days":1}}]}"#,
    ] {
        assert!(serde_json::from_str::<Lifecycle>(text).is_err(), "{text}");
    }
}

#[test]
fn the_first_of_several_rules_counts_for_the_day_of_expiry() {
    let rules = Lifecycle {
        rules: vec![
            days("late", 9),
            Rule { filter: below("logs/"), ..days("soon", 2) },
            Rule { is_enabled: false, ..days("off", 1) },
        ],
    };
    let object = |key| Object { key, size: 1, modified_ms: 0, tags: &[] };
    let of = |key| rules.expires(&object(key), Calendar::default()).map(|(at_ms, rule)| (at_ms, &*rule.id));
    assert_eq!(of(b"logs/a"), Some((2 * DAY_MS, "soon")));
    assert_eq!(of(b"a"), Some((9 * DAY_MS, "late")));
    assert_eq!(rules.common_prefix(), b"");
    assert_eq!(rules.aborts(b"a", 0, Calendar::default(), u64::MAX), None);
}

#[test]
fn a_version_is_no_former_one_before_it_came() {
    let former = Some(FormerExpiration { days: 1, newer: 0 });
    let rules = Lifecycle { rules: vec![Rule { former, ..rule("a") }] };
    let (mut scan, mut out) = (Scan::default(), Vec::new());
    // Another one came while the page was read.
    for (what, modified_ms, is_latest) in [(5, 0, true), (6, 39, false), (5, 0, false)] {
        let object = Object { key: b"k", size: 1, modified_ms, tags: &[] };
        let line = Line { object, is_marker: false, is_latest };
        scan.line(&rules, (Calendar::of(4), 40), line, what, &mut out);
    }
    assert!(out.is_empty(), "{out:?}");
}

/// A version of a model: when it came, whether it is a marker, its length, and whether it has the tag.
type Version = (u64, bool, u64, bool);

/// Keys, and of each its versions, the latest first.
fn histories() -> impl Strategy<Value = Vec<(String, Vec<Version>)>> {
    let version = (0..40u64, any::<bool>(), 0..4u64, any::<bool>());
    let versions = vec(version, 1..6).prop_map(|mut versions| {
        versions.sort_by_key(|version| std::cmp::Reverse(version.0));
        versions
    });
    proptest::collection::btree_map("[ab]{1,2}", versions, 0..6).prop_map(|map| map.into_iter().collect())
}

fn rules() -> impl Strategy<Value = Lifecycle> {
    let expiration = prop_oneof![
        Just(None),
        (1..6u32).prop_map(|days| Some(Expiration::Days(days))),
        (0..40u64).prop_map(|at_ms| Some(Expiration::Date(at_ms))),
        any::<bool>().prop_map(|goes| Some(Expiration::LoneMarker(goes))),
    ];
    let former =
        proptest::option::of((1..4u32, 0..4u32).prop_map(|(days, newer)| FormerExpiration { days, newer }));
    let filter = (proptest::option::of("[ab]?"), any::<bool>(), proptest::option::of(0..3u64)).prop_map(
        |(prefix, is_tagged, larger)| {
            let tags = if is_tagged { vec![("t".to_owned(), "v".to_owned())] } else { Vec::new() };
            Filter { form: Form::And, prefix, tags, larger, smaller: None }
        },
    );
    let rule =
        (any::<bool>(), filter, expiration, former).prop_map(|(is_enabled, filter, expiration, former)| {
            Rule { id: String::new(), is_enabled, filter, expiration, former, abort_days: None }
        });
    vec(rule, 0..4).prop_map(|mut rules| {
        rules.iter_mut().enumerate().for_each(|(number, rule)| rule.id = number.to_string());
        Lifecycle { rules }
    })
}

fn calendar() -> Calendar {
    Calendar::of(4)
}

/// What is decided about everything, in pages that each begin with a scan of their own at the key where the last one was.
fn scanned(
    rules: &Lifecycle,
    all: &[(String, Vec<Version>)],
    now_ms: u64,
    restarts: &[bool],
) -> Vec<(Act, String, (String, usize))> {
    let tag = [("t".to_owned(), "v".to_owned())];
    let (mut scan, mut out) = (Scan::default(), Vec::new());
    for (number, (key, versions)) in all.iter().enumerate() {
        if restarts.get(number) == Some(&true) {
            scan.end(rules, (calendar(), now_ms), &mut out);
            scan = Scan::default();
        }
        for (index, (at_ms, is_marker, size, is_tagged)) in versions.iter().enumerate() {
            let object = Object {
                key: key.as_bytes(),
                size: if *is_marker { 0 } else { *size },
                modified_ms: *at_ms,
                tags: if *is_tagged && !is_marker { &tag } else { &[] },
            };
            let line = Line { object, is_marker: *is_marker, is_latest: index == 0 };
            scan.line(rules, (calendar(), now_ms), line, (key.clone(), index), &mut out);
        }
    }
    scan.end(rules, (calendar(), now_ms), &mut out);
    let mut all: Vec<_> = out.into_iter().map(|one| (one.act, one.rule, one.what)).collect();
    all.sort();
    all
}

/// The same, said in another way: of each version by itself, with all of its key at hand.
fn looked(
    rules: &Lifecycle,
    all: &[(String, Vec<Version>)],
    now_ms: u64,
) -> Vec<(Act, String, (String, usize))> {
    let due = |since_ms: u64, days: u32| since_ms + u64::from(days) * 4 <= now_ms;
    let mut found = Vec::new();
    for (key, versions) in all {
        for (index, (at_ms, is_marker, size, is_tagged)) in versions.iter().enumerate() {
            let (size, is_tagged) = if *is_marker { (0, false) } else { (*size, *is_tagged) };
            let act = match (index, is_marker) {
                (0, false) => Act::Expire,
                (0, true) if versions.len() == 1 => Act::Unmark,
                (0, true) => continue,
                _ => Act::Remove,
            };
            let is_time = |rule: &Rule| match (act, rule.expiration, rule.former) {
                (Act::Remove, _, Some(former)) => {
                    index > former.newer as usize && due(versions[index - 1].0, former.days)
                }
                (Act::Remove, _, None) => false,
                (_, Some(Expiration::Days(days)), _) => due(*at_ms, days),
                (_, Some(Expiration::Date(date_ms)), _) => date_ms <= now_ms,
                (Act::Unmark, Some(Expiration::LoneMarker(goes)), _) => goes,
                _ => false,
            };
            let is_about = |rule: &Rule| {
                let filter = &rule.filter;
                filter.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
                    && (!is_marker || (filter.tags.is_empty() && filter.larger.is_none()))
                    && (filter.tags.is_empty() || is_tagged)
                    && filter.larger.is_none_or(|larger| size > larger)
            };
            let mut acting =
                rules.rules.iter().filter(|rule| rule.is_enabled && is_time(rule) && is_about(rule));
            let first = match act {
                // By which rule it goes first.
                Act::Expire => acting.min_by_key(|rule| match rule.expiration {
                    Some(Expiration::Days(days)) => at_ms + u64::from(days) * 4,
                    Some(Expiration::Date(date_ms)) => date_ms,
                    _ => u64::MAX,
                }),
                _ => acting.next(),
            };
            if let Some(rule) = first {
                found.push((act, rule.id.clone(), (key.clone(), index)));
            }
        }
    }
    found.sort();
    found
}

proptest! {
    #[test]
    fn a_scan_in_pages_decides_what_a_look_at_everything_does(
        rules in rules(),
        all in histories(),
        now_ms in 0..80u64,
        restarts in vec(any::<bool>(), 6),
    ) {
        prop_assert_eq!(scanned(&rules, &all, now_ms, &restarts), looked(&rules, &all, now_ms));
    }

    /// What is due stays due, and nothing is that is younger than the days of every rule.
    #[test]
    fn time_only_adds(rules in rules(), all in histories(), now_ms in 0..80u64, later_ms in 0..80u64) {
        let whats = |now_ms| scanned(&rules, &all, now_ms, &[]).into_iter().map(|one| one.2).collect::<Vec<_>>();
        let later = whats(now_ms + later_ms);
        prop_assert!(whats(now_ms).iter().all(|what| later.contains(what)));
    }

    /// A version that is present is never removed for good, and as many former ones stay as any rule that acts says.
    #[test]
    fn what_is_present_stays_or_gets_a_marker(rules in rules(), all in histories(), now_ms in 0..80u64) {
        for (act, id, (_, index)) in scanned(&rules, &all, now_ms, &[]) {
            let rule = rules.rules.iter().find(|rule| rule.id == id).unwrap();
            prop_assert!(rule.is_enabled);
            match act {
                Act::Remove => prop_assert!(index > rule.former.unwrap().newer as usize),
                Act::Expire | Act::Unmark => prop_assert_eq!(index, 0),
            }
        }
    }
}
