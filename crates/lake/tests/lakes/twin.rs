//! The simulated lake does what every lake does, and fails as it is told, the same way each time.

use crate::suite;
use crate::suite::keys::KeyKind;
use bytes::Bytes;
use stoker_lake::{Condition, Faults, Lake, LakeErrorKind, PutOptions, TwinLake};

#[test]
fn without_faults_it_is_a_lake() {
    let runtime = suite::runtime();
    suite::run(200, KeyKind::Raw, |actions| suite::check_actions(&runtime, &TwinLake::new(1), actions));
}

/// Calls a lake with all faults and says what came of it.
fn history(seed: u64) -> String {
    let lake = TwinLake::new(seed);
    lake.set_faults(Faults { foreign: 0.1, rot: 0.1, ..Faults::evenly(0.5) });
    suite::runtime().block_on(async {
        let mut text = String::new();
        for index in 0..200u64 {
            let key = format!("key{}", index % 7);
            let body = vec![Bytes::from(format!("body {index}"))];
            text.push_str(&format!("{:?}\n", lake.put(key.as_bytes(), body, PutOptions::default()).await));
            text.push_str(&format!("{:?}\n", lake.get(key.as_bytes(), 0..6, None).await));
            text.push_str(&format!("{:?}\n", lake.list(b"", None, None, 10).await));
        }
        let counts = lake.fault_counts();
        let all = [
            counts.busy,
            counts.reset_before,
            counts.reset_after,
            counts.late,
            counts.short_body,
            counts.bad_digest,
            counts.rot,
            counts.foreign,
        ];
        assert!(all.iter().all(|&count| count > 0), "a fault that never strikes: {counts:?}");
        text
    })
}

#[test]
fn a_seed_is_a_history() {
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

#[test]
fn a_late_effect_comes_after_the_failure() {
    suite::runtime().block_on(async {
        let lake = TwinLake::new(1);
        lake.set_faults(Faults { late: 1.0, ..Faults::default() });
        let answer = lake.put(b"a", vec![Bytes::from_static(b"x")], PutOptions::default()).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Unavailable);
        assert!(lake.objects().is_empty());
        lake.settle();
        assert_eq!(lake.objects()[&b"a"[..]].body, "x");
    });
}

#[test]
fn a_late_effect_looks_at_its_condition_when_it_comes() {
    suite::runtime().block_on(async {
        let lake = TwinLake::new(1);
        lake.set_faults(Faults { late: 1.0, ..Faults::default() });
        let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        lake.put(b"a", vec![Bytes::from_static(b"late")], options).await.unwrap_err();
        lake.foreign_put(b"a", "first");
        lake.settle();
        assert_eq!(lake.objects()[&b"a"[..]].body, "first");
    });
}

#[test]
fn it_can_be_down() {
    suite::runtime().block_on(async {
        let lake = TwinLake::new(1);
        lake.refuse_all(true);
        assert_eq!(lake.head(b"a").await.unwrap_err().kind, LakeErrorKind::Unavailable);
        lake.refuse_all(false);
        assert_eq!(lake.head(b"a").await, Ok(None));
    });
}
