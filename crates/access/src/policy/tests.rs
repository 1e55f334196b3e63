use super::*;

fn policy(statements: &str) -> Policy {
    read(statements).unwrap_or_else(|fault| panic!("{fault:?}: {statements}"))
}

fn read(statements: &str) -> Result<Policy, Fault> {
    let document = format!(r#"{{"Version": "2012-10-17", "Statement": {statements}}}"#);
    Policy::parse(document.as_bytes(), "data", "acme")
}

fn asked<'a>(user: &'a str, action: &'a str, on: On<'a>) -> Asked<'a> {
    let address = "10.1.2.3".parse().ok();
    let user = Some(user).filter(|user| !user.is_empty());
    Asked { tenant: "acme", user, action, on, address, is_tls: false, now_ms: 1_795_046_400_000 }
}

fn key(text: &str) -> On<'_> {
    On::Key(text.as_bytes())
}

#[test]
fn a_no_counts_more_than_a_yes_and_silence_is_neither() {
    let both = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::acme:user/alice"}, "Action": "s3:*Object",
             "Resource": "arn:aws:s3:::data/*"},
            {"Sid": "keep", "Effect": "Deny", "Principal": "*", "Action": ["s3:DeleteObject", "s3:PutObject"],
             "Resource": ["arn:aws:s3:::data/kept/*"]}]"#,
    );
    for (user, action, on, expect) in [
        ("alice", "s3:GetObject", key("a"), Effect::Allow),
        ("alice", "s3:GetObject", key("kept/a"), Effect::Allow),
        ("alice", "s3:DeleteObject", key("kept/a"), Effect::Deny),
        ("alice", "s3:ListBucket", On::Volume(None), Effect::Silent),
        ("bob", "s3:GetObject", key("a"), Effect::Silent),
        ("bob", "s3:PutObject", key("kept/a"), Effect::Deny),
        ("", "s3:PutObject", key("kept/a"), Effect::Deny),
        ("bob", "s3:PutObject", key("kept"), Effect::Silent),
        // A folder around it takes it along.
        ("bob", "s3:DeleteObject", On::Below(b""), Effect::Deny),
        ("bob", "s3:DeleteObject", On::Below(b"kept/b/"), Effect::Deny),
        ("bob", "s3:DeleteObject", On::Below(b"other/"), Effect::Silent),
        ("alice", "s3:GetObject", On::Below(b"other/"), Effect::Allow),
    ] {
        assert_eq!(both.says(&asked(user, action, on)), expect, "{user} {action} {on:?}");
    }
    assert!(both.knows(&asked("alice", "", On::Volume(None))));
    assert!(!both.knows(&asked("bob", "", On::Volume(None))));
}

#[test]
fn the_same_with_not() {
    let only = policy(
        r#"{"Effect": "Deny", "NotPrincipal": {"AWS": ["arn:aws:iam::acme:user/alice"]}, "NotAction": "s3:GetObject",
            "NotResource": "arn:aws:s3:::data/open/*"}"#,
    );
    for (user, action, on, expect) in [
        ("alice", "s3:PutObject", key("x"), Effect::Silent),
        ("bob", "s3:PutObject", key("x"), Effect::Deny),
        ("bob", "s3:GetObject", key("x"), Effect::Silent),
        ("bob", "s3:PutObject", key("open/x"), Effect::Silent),
        ("bob", "s3:ListBucket", On::Volume(None), Effect::Deny),
        ("bob", "s3:DeleteObject", On::Below(b"open/"), Effect::Silent),
        ("bob", "s3:DeleteObject", On::Below(b"ope"), Effect::Deny),
    ] {
        assert_eq!(only.says(&asked(user, action, on)), expect, "{user} {action} {on:?}");
    }
}

#[test]
fn conditions() {
    let holds = |condition: &str, asked: &Asked<'_>| {
        let text = format!(
            r#"{{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*", "Condition": {{{condition}}}}}"#
        );
        policy(&text).says(asked) == Effect::Deny
    };
    let plain = asked("alice", "s3:GetObject", key("x"));
    let secure = Asked { is_tls: true, ..plain };
    let unknown = Asked { user: None, address: None, ..plain };
    let listing = Asked { on: On::Volume(Some(b"home/alice/")), action: "s3:ListBucket", ..plain };
    for (condition, asked, expect) in [
        (r#""Bool": {"aws:SecureTransport": "false"}"#, &plain, true),
        (r#""Bool": {"aws:SecureTransport": false}"#, &secure, false),
        (r#""IpAddress": {"aws:SourceIp": ["192.0.2.0/24", "10.0.0.0/8"]}"#, &plain, true),
        (r#""NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}"#, &plain, false),
        (r#""IpAddress": {"aws:SourceIp": "10.0.0.0/8"}"#, &unknown, false),
        (r#""NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}"#, &unknown, true),
        (r#""IpAddressIfExists": {"aws:SourceIp": "192.0.2.0/24"}"#, &unknown, true),
        (r#""StringEquals": {"aws:username": ["bob", "alice"]}"#, &plain, true),
        (r#""StringNotEquals": {"aws:username": ["bob", "alice"]}"#, &plain, false),
        (r#""StringEqualsIgnoreCase": {"aws:username": "ALICE"}"#, &plain, true),
        (r#""StringLike": {"aws:username": "al*"}"#, &unknown, false),
        (r#""StringNotLike": {"s3:prefix": "home/${aws:username}/*"}"#, &listing, false),
        (r#""StringNotLike": {"s3:prefix": "home/bob/*"}"#, &listing, true),
        (r#""StringEquals": {"s3:prefix": "home/${aws:username}/"}"#, &listing, true),
        (r#""ArnLike": {"aws:PrincipalArn": "arn:aws:iam::acme:user/a*"}"#, &plain, true),
        (r#""Null": {"aws:username": "true"}"#, &unknown, true),
        (r#""Null": {"aws:username": "true"}"#, &plain, false),
        (r#""DateGreaterThan": {"aws:CurrentTime": "2026-11-18T23:59:59Z"}"#, &plain, true),
        (r#""DateLessThan": {"aws:CurrentTime": "2026-11-19"}"#, &plain, false),
        (r#""DateLessThanEquals": {"aws:CurrentTime": "2026-11-19"}"#, &plain, true),
        // All of them have to hold.
        (
            r#""Bool": {"aws:SecureTransport": "false"}, "StringEquals": {"aws:username": "bob"}"#,
            &plain,
            false,
        ),
    ] {
        assert_eq!(holds(condition, asked), expect, "{condition} {asked:?}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let unsupported = |statements: &str, what: &str| match read(statements) {
        Err(Fault::Unsupported(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("{statements}: {other:?}"),
    };
    let malformed = |statements: &str, what: &str| match read(statements) {
        Err(Fault::Malformed(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("{statements}: {other:?}"),
    };
    let with = |effect: &str, who: &str, action: &str, thing: &str, more: &str| {
        format!(
            r#"{{"Effect": "{effect}", "Principal": {who}, "Action": "{action}", "Resource": "{thing}"{more}}}"#
        )
    };
    let deny = |action: &str, thing: &str, more: &str| with("Deny", r#""*""#, action, thing, more);
    unsupported(&with("Allow", r#""*""#, "s3:GetObject", "*", ""), "the public has no access");
    unsupported(&with("Allow", r#"{"AWS": "*"}"#, "s3:GetObject", "*", ""), "arn:aws:iam::acme:user/NAME");
    unsupported(&with("Deny", r#"{"AWS": "arn:aws:iam::beta:user/eve"}"#, "s3:*", "*", ""), "another tenant");
    unsupported(&with("Deny", r#"{"AWS": "arn:aws:iam::acme:role/r"}"#, "s3:*", "*", ""), "users");
    malformed(&with("Deny", r#"{"AWS": "alice"}"#, "s3:*", "*", ""), "invalid principal");
    malformed(&with("Deny", r#"{"Federated": "x"}"#, "s3:*", "*", ""), "kind Federated");
    malformed(&with("Maybe", r#""*""#, "s3:*", "*", ""), "unknown variant `Maybe`");
    malformed(&with("Deny", "[]", "s3:*", "*", ""), "line 1 column");
    unsupported(&deny("s3:PutObjectTagging", "*", ""), "PutObjectTagging");
    unsupported(&deny("s3:PutBucketPolicy", "*", ""), "PutBucketPolicy");
    malformed(&deny("ec2:RunInstances", "*", ""), "invalid action");
    malformed(&deny("s3:*", "arn:aws:s3:::other/*", ""), "not in the bucket");
    malformed(&deny("s3:*", "arn:aws:s3:::database", ""), "not in the bucket");
    unsupported(&deny("s3:*", "arn:aws:s3:::data/${aws:userid}", ""), "variable");
    let condition = |text: &str| deny("s3:*", "*", &format!(r#", "Condition": {{{text}}}"#));
    unsupported(&condition(r#""StringEquals": {"s3:x-amz-acl": "private"}"#), "s3:x-amz-acl");
    unsupported(&condition(r#""NumericEquals": {"s3:prefix": "1"}"#), "does not go with");
    unsupported(&condition(r#""ForAnyValue:StringEquals": {"s3:prefix": "1"}"#), "several values");
    malformed(&condition(r#""IpAddress": {"aws:SourceIp": "10.0.0"}"#), "no network");
    malformed(&condition(r#""Bool": {"aws:SecureTransport": "maybe"}"#), "neither true nor false");
    malformed(&deny("s3:*", "*", r#", "Conditon": {}"#), "unknown field `Conditon`");
    malformed("[]", "no statement");
    malformed(r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*"}"#, "no Resource");
    malformed(
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "NotAction": "s3:*", "Resource": "*"}"#,
        "both",
    );
    malformed(r#"{"Effect": "Deny", "Principal": "*", "Action": [], "Resource": "*"}"#, "empty");
    for document in ["", "{", "[1]", "{}", "null", "\u{feff}{}", r#"{"Version": "x", "Statement": []}"#] {
        assert!(matches!(Policy::parse(document.as_bytes(), "data", "acme"), Err(Fault::Malformed(_))));
    }
    let long = vec![b' '; POLICY_LEN_MAX + 1];
    assert!(matches!(Policy::parse(&long, "data", "acme"), Err(Fault::Malformed(_))));
    let deep = "[".repeat(10_000);
    assert!(matches!(Policy::parse(deep.as_bytes(), "data", "acme"), Err(Fault::Malformed(_))));
}

/// Every name that calls ask for is one that policies may have, and no call that changes bytes or names has none.
#[test]
fn calls_have_names() {
    use crate::action::Kind;
    for action in Action::ALL {
        for name in names_of(*action) {
            assert!(is_known(&name.to_ascii_lowercase(), false), "{name}");
        }
        let is_for_keys = matches!(action.kind(), Kind::Read | Kind::Look | Kind::Write);
        let is_other = matches!(
            action,
            Action::VolumeCreate
                | Action::SetVolumeSetting
                | Action::Inodes
                | Action::Directory
                | Action::Sets
                | Action::Conflicts
                | Action::JobLook
                | Action::JobChange
        );
        assert_eq!(names_of(*action).is_empty(), is_other || !is_for_keys, "{action:?}");
    }
}
