//! What becomes of the copy of one object in a second lake.
//!
//! Three things are looked at: what the first lake has by the catalog, what is known of the copy, and what the second lake says is there. Nothing is replaced or
//! removed in the second lake that is not known to be this cluster's: by the etag that was confirmed, by a version that was sent, or by metadata
//! that this cluster signed.

/// What the first lake has under a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Somebody writes there now.
    Busy,
    /// Nothing.
    Nothing,
    /// A confirmed object.
    Object(Object),
}

/// An object, in either lake.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// Etag there.
    pub etag: String,
    /// Length.
    pub size: u64,
    /// CRC-64/NVME, if it is known.
    pub crc64: Option<u64>,
    /// The version that it is, on this cluster's word.
    pub version: Option<String>,
}

/// What is known of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// Etag in the first lake of what was copied.
    pub source: Option<String>,
    /// Etag of the copy.
    pub etag: Option<String>,
    /// Versions that were sent since.
    pub attempts: Vec<String>,
    /// A request may still take effect.
    pub is_unsettled: bool,
}

/// What the second lake must have for a write to happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing.
    Absent,
    /// An object with this etag.
    Etag(String),
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing now; look again later.
    Wait,
    /// The copy is what it should be.
    Done,
    /// What is there is the copy already: it has this etag.
    Adopt(String),
    /// Copy the object.
    Copy(Expect),
    /// Delete the copy with this etag.
    Delete(String),
    /// Nothing is there, and nothing has to be.
    Forget,
    /// Somebody else's object is there, with this etag; it stays.
    Foreign(String),
}

/// Whether the answer is known without a question to the second lake.
pub fn without_a_look(source: &Source, known: &Known) -> Option<Step> {
    if known.is_unsettled || *source == Source::Busy {
        return Some(Step::Wait);
    }
    match source {
        Source::Object(object)
            if known.attempts.is_empty()
                && known.etag.is_some()
                && known.source.as_ref() == Some(&object.etag) =>
        {
            Some(Step::Done)
        }
        _ => None,
    }
}

/// What to do, once the second lake said what it has.
pub fn next(source: &Source, known: &Known, there: Option<&Object>) -> Step {
    if let Some(step) = without_a_look(source, known) {
        return step;
    }
    match (source, there) {
        (Source::Busy, _) => Step::Wait,
        (Source::Nothing, None) => Step::Forget,
        (Source::Nothing, Some(there)) if is_ours(known, there) => Step::Delete(there.etag.clone()),
        (Source::Nothing, Some(_)) => Step::Forget,
        (Source::Object(_), None) => Step::Copy(Expect::Absent),
        (Source::Object(object), Some(there)) => {
            if is_same(object, known, there) {
                Step::Adopt(there.etag.clone())
            } else if is_ours(known, there) {
                Step::Copy(Expect::Etag(there.etag.clone()))
            } else {
                Step::Foreign(there.etag.clone())
            }
        }
    }
}

/// Whether this cluster wrote what is there: nobody else's object is replaced.
fn is_ours(known: &Known, there: &Object) -> bool {
    known.etag.as_ref() == Some(&there.etag) || there.version.is_some()
}

/// Whether what is there is what would be copied.
fn is_same(object: &Object, known: &Known, there: &Object) -> bool {
    if known.etag.as_ref() == Some(&there.etag) && known.source.as_ref() == Some(&object.etag) {
        return true;
    }
    let is_sound = object.crc64.is_none() || there.crc64.is_none() || object.crc64 == there.crc64;
    let is_version = object.version.is_some() && object.version == there.version;
    let has_sum = object.crc64.is_some() && object.crc64 == there.crc64;
    object.size == there.size && is_sound && (is_version || has_sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(etag: &str, version: Option<&str>, crc64: Option<u64>) -> Object {
        Object { etag: etag.into(), size: 5, crc64, version: version.map(str::to_owned) }
    }

    fn known(source: Option<&str>, etag: Option<&str>) -> Known {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Known { source: text(source), etag: text(etag), ..Known::default() }
    }

    #[test]
    fn a_copy_follows_its_source_and_touches_nothing_foreign() {
        let source = || Source::Object(object("a2", Some("v2"), Some(7)));
        let etag = |etag: &str| etag.to_owned();
        let new = Known::default();
        let check = |source: Source, known: &Known, there: Option<Object>, expect: Step| {
            assert_eq!(next(&source, known, there.as_ref()), expect, "{source:?} {known:?} {there:?}");
        };
        check(source(), &new, None, Step::Copy(Expect::Absent));
        check(source(), &known(Some("a2"), Some("b2")), None, Step::Done);
        // An earlier copy, by its etag or by what this cluster signed.
        let older = object("b1", Some("v1"), Some(3));
        check(
            source(),
            &known(Some("a1"), Some("b1")),
            Some(older.clone()),
            Step::Copy(Expect::Etag(etag("b1"))),
        );
        check(source(), &new, Some(older), Step::Copy(Expect::Etag(etag("b1"))));
        // It is there already: an answer was lost, or the lake was the first one before.
        check(source(), &new, Some(object("b2", Some("v2"), None)), Step::Adopt(etag("b2")));
        check(source(), &new, Some(object("b2", None, Some(7))), Step::Adopt(etag("b2")));
        // The same version with other bytes is not the same.
        check(source(), &new, Some(object("b2", Some("v2"), Some(8))), Step::Copy(Expect::Etag(etag("b2"))));
        // Somebody else's.
        check(source(), &new, Some(object("x", None, Some(8))), Step::Foreign(etag("x")));
        check(
            source(),
            &known(Some("a1"), Some("b1")),
            Some(object("x", None, None)),
            Step::Foreign(etag("x")),
        );
        check(Source::Nothing, &new, Some(object("x", None, None)), Step::Forget);
        check(Source::Nothing, &new, None, Step::Forget);
        check(
            Source::Nothing,
            &known(Some("a1"), Some("b1")),
            Some(object("b1", None, None)),
            Step::Delete(etag("b1")),
        );
        check(Source::Nothing, &new, Some(object("b1", Some("v1"), None)), Step::Delete(etag("b1")));
        check(Source::Busy, &new, None, Step::Wait);
        let unsettled = Known { is_unsettled: true, ..known(Some("a2"), Some("b2")) };
        check(source(), &unsettled, None, Step::Wait);
        // Something was sent since it was confirmed: only a look tells.
        let doubted = Known { attempts: vec!["v3".into()], ..known(Some("a2"), Some("b2")) };
        assert_eq!(without_a_look(&source(), &doubted), None);
        check(source(), &doubted, Some(object("b3", Some("v3"), None)), Step::Copy(Expect::Etag(etag("b3"))));
    }
}
