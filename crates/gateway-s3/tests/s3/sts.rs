//! Temporary keys: who gets them, what they open, and when they stop to.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::rsa::KeySize;
use serde_json::{Value, json};
use stoker_access::SessionRequest;
use stoker_gateway_s3::{Gateway, GatewayOptions};
use stoker_oidc::{IssuerOptions, Issuers, Role, RoleName};
use stoker_store::{
    Access, ErrorKind, Order, PeopleChange, Store, UserName, UserRights, VolumeOptions, owner_entry,
};

use crate::client::{Body, Client, Response, encode_all, now_s};
use crate::forms;
use crate::matrix::{session_of, session_request};
use crate::provider::{Provider, Signer};
use crate::rig::{Rig, access_key, client};

const ROLE: &str = "arn:aws:iam::sts-one:role/trainer";

struct Sts {
    provider: Provider,
    signer: Signer,
    gateway: Gateway,
}

fn change(change: PeopleChange) {
    let rig = Rig::get();
    // The level of a new node rises within its first moments.
    loop {
        match rig.runtime.block_on(rig.node.operate(Order::PeopleChange(change.clone()))) {
            Ok(_) => return,
            Err(fault) if fault.kind == ErrorKind::Invalid => std::thread::yield_now(),
            Err(fault) => panic!("{change:?}: {fault}"),
        }
    }
}

fn user(text: &str) -> UserName {
    UserName::parse(text).unwrap()
}

fn add_user(text: &str) {
    change(PeopleChange::UserCreate { name: user(text), rights: UserRights::default() });
}

fn sts() -> &'static Sts {
    static STS: OnceLock<Sts> = OnceLock::new();
    STS.get_or_init(|| {
        let rig = Rig::get();
        change(PeopleChange::TenantCreate { tenant: "sts-one".into() });
        add_user("sts-one/trainer");
        rig.runtime.block_on(rig.node.volume_create("sts-one_data", VolumeOptions::default())).unwrap();
        let (provider, signer) = (Provider::start(), Signer::rsa(KeySize::Rsa2048));
        provider.lists(vec![signer.jwk("r")]);
        let role = |name: &str, user: &str, prefixes: &[&str], duration_max_s| Role {
            name: RoleName::parse(name).unwrap(),
            user: user.to_owned(),
            groups: vec!["ml".to_owned()],
            subjects: Vec::new(),
            claims: Vec::new(),
            is_read_only: false,
            prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
            duration_max_s,
        };
        let issuers = Issuers::new(vec![IssuerOptions {
            name: "corp".to_owned(),
            issuer: provider.issuer.clone(),
            audiences: vec!["stoker".to_owned()],
            groups_claim: "groups".to_owned(),
            skew_s: 60,
            stale_max: Duration::from_secs(86_400),
            ca_file: None,
            roles: vec![
                role("sts-one/trainer", "trainer", &[], 7_200),
                role("sts-one/runs", "trainer", &["data/runs/"], 3_600),
                role("sts-one/self", "{preferred_username}", &[], 3_600),
            ],
            console: None,
        }]);
        let gateway = Gateway::start_with(rig.guard(), Arc::new(issuers), GatewayOptions::default()).unwrap();
        Sts { provider, signer, gateway }
    })
}

impl Sts {
    fn client(&self, access_key: &str) -> Client {
        Client { address: self.gateway.addresses()[0], access_key: access_key.to_owned(), ..client() }
    }

    fn post(&self, form: &str) -> Response {
        self.client("").plain(
            "POST",
            "/",
            "content-type: application/x-www-form-urlencoded; charset=utf-8\r\n",
            form.as_bytes(),
        )
    }

    fn claims(&self, subject: &str) -> Value {
        self.provider.claims(subject, &["ml"], now_s())
    }

    fn assume(&self, role: &str, claims: &Value, more: &str) -> Response {
        let token = self.signer.token("r", claims);
        self.post(&format!(
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName=run-7&WebIdentityToken={token}{more}",
            encode_all(role)
        ))
    }

    fn of(&self, answer: &Response) -> Client {
        let text = |name: &str| answer.element(name).unwrap();
        Client {
            secret_key: text("SecretAccessKey"),
            token: Some(text("SessionToken")),
            ..self.client(&text("AccessKeyId"))
        }
    }
}

/// A signed question to STS.
fn ask(client: &Client, form: &str) -> Response {
    let client = Client { service: "sts", ..client.clone() };
    let mut request = client.request("POST", "/").body(form.as_bytes());
    request.kind = Body::Sha256;
    client.send(request.header("content-type", "application/x-www-form-urlencoded; charset=utf-8"))
}

/// An error of STS.
#[track_caller]
fn refused(answer: &Response, status: u16, code: &str) {
    let found = (answer.status, answer.element("Code"));
    assert_eq!(found, (status, Some(code.to_owned())), "{}", answer.text());
    assert!(answer.text().starts_with(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender"
    ));
    assert_eq!(answer.element("RequestId").as_deref(), answer.header("x-amz-request-id"));
}

#[test]
fn a_token_of_a_provider_becomes_a_key_that_does_what_its_user_may() {
    let sts = sts();
    let answer = sts.assume(ROLE, &sts.claims("alice@example.com"), "").expect(200);
    let element = |name: &str| answer.element(name).unwrap();
    assert_eq!(element("SubjectFromWebIdentityToken"), "alice@example.com");
    assert_eq!((element("Audience"), element("Provider")), ("stoker".into(), sts.provider.issuer.clone()));
    assert_eq!(element("Arn"), "arn:aws:sts::sts-one:assumed-role/trainer/run-7");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let session = sts.of(&answer);
    session.put("/data/a", b"bytes").expect(200);
    assert_eq!(session.get("/data/a").expect(200).body, b"bytes");
    // As URLs, in the form of a browser, and at another node of the cluster.
    let url = session.presign("GET", "/data/a", 60, "");
    assert_eq!(session.plain("GET", &url, "", b"").expect(200).body, b"bytes");
    let without = url.replace(&format!("&X-Amz-Security-Token={}", session.token.as_ref().unwrap()), "");
    assert_ne!(without, url);
    session.plain("GET", &without, "", b"").refused(403, "InvalidAccessKeyId");
    let twice = session.plain(
        "GET",
        &url,
        &format!("x-amz-security-token: {}\r\n", session.token.as_ref().unwrap()),
        b"",
    );
    assert!(twice.status >= 400, "{}", twice.text());
    let other_node = Client { address: Rig::get().gateway.addresses()[0], ..session.clone() };
    // That node knows the user, who was made here, within seconds.
    while other_node.get("/data/a").status == 400 {
        std::thread::yield_now();
    }
    assert_eq!(other_node.get("/data/a").expect(200).body, b"bytes");
    let token = session.token.clone().unwrap();
    let fields = [("x-amz-security-token", token.as_str())];
    let condition = format!("{{\"x-amz-security-token\":\"{token}\"}},");
    forms::post_with(&session, "data", "user/x", b"form", 100, &fields, &condition).expect(201);
    forms::post_with(&session, "data", "user/x", b"form", 100, &[], "").refused(403, "InvalidAccessKeyId");
    // Who it is.
    let who = ask(&session, "Action=GetCallerIdentity&Version=2011-06-15").expect(200);
    assert_eq!(who.element("Arn").unwrap(), "arn:aws:sts::sts-one:assumed-role/trainer/run-7");
    assert_eq!(who.element("Account").unwrap(), "sts-one");
    refused(&ask(&session, "Action=GetSessionToken"), 403, "AccessDenied");
    refused(
        &ask(&Client { token: None, ..session.clone() }, "Action=GetCallerIdentity"),
        403,
        "InvalidClientTokenId",
    );
    refused(
        &ask(&Client { secret_key: "guess".into(), ..session.clone() }, "Action=GetCallerIdentity"),
        403,
        "SignatureDoesNotMatch",
    );
    // A signature for S3 is none for STS, and the other way round.
    let crossed = Client { service: "sts", ..session.clone() };
    crossed.get("/data/a").refused(400, "AuthorizationHeaderMalformed");
}

#[test]
fn a_role_and_a_policy_take_away_and_never_give() {
    let sts = sts();
    let boss = sts.of(&sts.assume(ROLE, &sts.claims("boss"), ""));
    boss.put("/data/runs/1/x", b"run").expect(200);
    boss.put("/data/else", b"else").expect(200);
    let runs = sts.of(&sts.assume("arn:aws:iam::sts-one:role/runs", &sts.claims("carol"), ""));
    runs.get("/data/runs/1/x").expect(200);
    runs.put("/data/runs/2/x", b"run").expect(200);
    runs.get("/data/else").refused(403, "AccessDenied");
    runs.get("/sts-one/x").refused(403, "AccessDenied");
    let policy = |action: &str, place: &str| {
        let policy = json!({"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": action.split(',').collect::<Vec<_>>(),
            "Resource": ["arn:aws:s3:::data", format!("arn:aws:s3:::data/{place}")]}});
        format!("&Policy={}", encode_all(&policy.to_string()))
    };
    let reader = sts.of(&sts.assume(ROLE, &sts.claims("dave"), &policy("s3:Get*,s3:List*", "runs/*")));
    reader.get("/data/runs/1/x").expect(200);
    reader.get("/data?list-type=2&prefix=runs%2F").expect(200);
    reader.put("/data/runs/1/y", b"no").refused(403, "AccessDenied");
    reader.get("/data/else").refused(403, "AccessDenied");
    // Both: what the role leaves, and of that what the policy leaves.
    let both = sts.assume("arn:aws:iam::sts-one:role/runs", &sts.claims("erin"), &policy("s3:*", "*"));
    sts.of(&both).get("/data/else").refused(403, "AccessDenied");
    let disjoint =
        sts.assume("arn:aws:iam::sts-one:role/runs", &sts.claims("erin"), &policy("s3:*", "else*"));
    for path in ["/data/else", "/data/runs/1/x"] {
        sts.of(&disjoint).get(path).refused(403, "AccessDenied");
    }
    for bad in [policy("s3:GetObject", "*"), "&Policy=%7B%7D".to_owned()] {
        refused(&sts.assume(ROLE, &sts.claims("dave"), &bad), 400, "MalformedPolicyDocument");
    }
}

#[test]
fn what_is_no_good_token_or_no_good_question_gets_awss_codes() {
    let sts = sts();
    let good = sts.claims("alice");
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims
    };
    for (claims, status, code) in [
        (with("exp", json!(now_s() - 100)), 400, "ExpiredTokenException"),
        (with("nbf", json!(now_s() + 100)), 400, "InvalidIdentityToken"),
        (with("aud", json!("other")), 400, "InvalidIdentityToken"),
        (with("iss", json!("https://evil.example.com")), 400, "InvalidIdentityToken"),
        (with("groups", json!(["other"])), 403, "AccessDenied"),
    ] {
        refused(&sts.assume(ROLE, &claims, ""), status, code);
    }
    for role in [
        "arn:aws:iam::sts-one:role/none",
        "arn:aws:iam::sts-two:role/trainer",
        "arn:aws:iam::123456789012:role/x",
    ] {
        refused(&sts.assume(role, &good, ""), 403, "AccessDenied");
    }
    let own = "arn:aws:iam::sts-one:role/self";
    refused(&sts.assume(own, &sts.claims("nobody-here"), ""), 403, "AccessDenied");
    sts.assume(own, &sts.claims("trainer"), "").expect(200);
    for (more, status, code) in [
        ("&DurationSeconds=899", 400, "ValidationError"),
        ("&DurationSeconds=43201", 400, "ValidationError"),
        ("&DurationSeconds=7201", 400, "ValidationError"),
        ("&DurationSeconds=-1", 400, "ValidationError"),
        ("&DurationSeconds=900x", 400, "ValidationError"),
        ("&PolicyArns.member.1.arn=arn:aws:iam::aws:policy/ReadOnlyAccess", 400, "ValidationError"),
        ("&Version=2011-06-15", 400, "ValidationError"),
        ("&%", 400, "ValidationError"),
    ] {
        refused(&sts.assume(ROLE, &good, more), status, code);
    }
    sts.assume(ROLE, &good, "&DurationSeconds=7200").expect(200);
    for (form, status, code) in [
        ("", 400, "MissingAction"),
        ("Action=AssumeRole", 400, "InvalidAction"),
        ("Action=GetCallerIdentity&Version=2010", 400, "InvalidAction"),
        ("Action=GetCallerIdentity", 403, "MissingAuthenticationToken"),
        ("Action=GetSessionToken", 403, "MissingAuthenticationToken"),
        ("Action=AssumeRoleWithWebIdentity", 400, "ValidationError"),
        (
            "Action=AssumeRoleWithWebIdentity&RoleArn=arn:aws:iam::sts-one:role/trainer&RoleSessionName=a%20b&WebIdentityToken=a.b.c",
            400,
            "ValidationError",
        ),
        (
            "Action=AssumeRoleWithWebIdentity&RoleArn=arn:aws:iam::sts-one:role/trainer&RoleSessionName=ab&WebIdentityToken=a.b.c",
            400,
            "InvalidIdentityToken",
        ),
    ] {
        refused(&sts.post(form), status, code);
    }
    refused(
        &sts.post(&format!("Action=AssumeRoleWithWebIdentity&x={}", "x".repeat(100_000))),
        400,
        "ValidationError",
    );
    // Other types of bodies are not for STS.
    sts.client("")
        .plain("POST", "/", "content-type: text/plain\r\n", b"Action=GetCallerIdentity")
        .refused(403, "AccessDenied");
}

#[test]
fn a_key_gets_a_temporary_one_that_ends_with_it() {
    let (rig, sts) = (Rig::get(), sts());
    add_user("sts-one/keyed");
    let access = Access {
        prefixes: vec![owner_entry(&user("sts-one/keyed")), "sts-one_data/k/".into()],
        ..Access::default()
    };
    rig.runtime.block_on(rig.node.access_key_put(access_key("STSKEY", "first", access.clone()))).unwrap();
    let lasting = Client { secret_key: "first".into(), ..sts.client("STSKEY") };
    let who = ask(&lasting, "Action=GetCallerIdentity").expect(200);
    assert_eq!(who.element("Arn").unwrap(), "arn:aws:iam::sts-one:user/keyed");
    refused(&ask(&lasting, "Action=GetSessionToken&SerialNumber=x&TokenCode=1"), 400, "ValidationError");
    let session = sts.of(&ask(&lasting, "Action=GetSessionToken&DurationSeconds=900").expect(200));
    session.put("/data/k/x", b"x").expect(200);
    session.get("/data/else").refused(403, "AccessDenied");
    // A key of nobody in the default tenant.
    let of_nobody = ask(&sts.client(&client().access_key), "Action=GetCallerIdentity").expect(200);
    assert_eq!(of_nobody.element("Account").unwrap(), "default");
    // The same name with another secret is another key. What was known is known for three seconds, so another node is asked.
    rig.runtime.block_on(rig.node.access_key_put(access_key("STSKEY", "second", access))).unwrap();
    let fresh = rig.other_gateway(GatewayOptions::default());
    let at = |session: &Client| Client { address: fresh.addresses()[0], ..session.clone() };
    at(&session).get("/data/k/x").refused(400, "InvalidToken");
    rig.runtime.block_on(rig.node.access_key_delete("STSKEY")).unwrap();
    at(&session).get("/data/k/x").refused(400, "InvalidToken");
}

#[test]
fn users_who_are_kept_out_and_users_who_are_gone_have_no_temporary_keys() {
    let rig = Rig::get();
    sts();
    // What a node knows of users is three seconds old at most; one that starts knows nothing.
    let fresh = || {
        let gateway = rig.other_gateway(GatewayOptions::default());
        let address = gateway.addresses()[0];
        (gateway, address)
    };
    add_user("sts-one/leaver");
    let request = |now_ms| SessionRequest { now_ms, ..session_request() };
    let session = session_of(&rig.guard(), "sts-one/leaver", request(session_request().now_ms));
    let (gateway, address) = fresh();
    Client { address, ..session.clone() }.put("/data/leaver", b"x").expect(200);
    drop(gateway);
    let rights = |disabled| UserRights { disabled, ..UserRights::default() };
    change(PeopleChange::UserSet { name: user("sts-one/leaver"), rights: rights(true) });
    let (gateway, address) = fresh();
    Client { address, ..session.clone() }.get("/data/leaver").refused(400, "InvalidToken");
    drop(gateway);
    change(PeopleChange::UserSet { name: user("sts-one/leaver"), rights: rights(false) });
    let (gateway, address) = fresh();
    Client { address, ..session.clone() }.get("/data/leaver").expect(200);
    drop(gateway);
    // Another one of the same name is somebody else.
    change(PeopleChange::UserDelete { name: user("sts-one/leaver") });
    let (gateway, address) = fresh();
    Client { address, ..session.clone() }.get("/data/leaver").refused(400, "InvalidToken");
    drop(gateway);
    add_user("sts-one/leaver");
    let (_gateway, address) = fresh();
    Client { address, ..session.clone() }.get("/data/leaver").refused(400, "InvalidToken");
}
