//! Answers that are dear to make and may be a little old: whoever asks again soon gets the same one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// Answers that are kept; beyond, the oldest one goes.
const ANSWERS_MAX: usize = 256;

/// The answers, by what was asked.
#[derive(Default)]
pub struct Recent {
    kept: Mutex<HashMap<String, (Instant, Value)>>,
}

impl Recent {
    /// An answer that is no older than this.
    pub fn get(&self, asked: &str, age_max: Duration, now: Instant) -> Option<Value> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, value) = kept.get(asked)?;
        (now.saturating_duration_since(*when) <= age_max).then(|| value.clone())
    }

    /// Keeps an answer.
    pub fn put(&self, asked: String, value: Value, now: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= ANSWERS_MAX && !kept.contains_key(&asked) {
            let oldest = kept.iter().min_by_key(|(_, (when, _))| *when).map(|(asked, _)| asked.clone());
            oldest.map(|asked| kept.remove(&asked));
        }
        kept.insert(asked, (now, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_age_and_are_few() {
        let recent = Recent::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        recent.put("a".into(), 1.into(), at(0));
        let age = Duration::from_secs(5);
        assert_eq!(recent.get("a", age, at(5)), Some(1.into()));
        assert_eq!((recent.get("a", age, at(6)), recent.get("b", age, at(0))), (None, None));
        for number in 1..=ANSWERS_MAX as u64 {
            recent.put(number.to_string(), number.into(), at(number));
        }
        assert_eq!(recent.kept.lock().unwrap().len(), ANSWERS_MAX);
        assert_eq!(recent.get("a", age, at(0)), None, "the oldest one went");
    }
}
