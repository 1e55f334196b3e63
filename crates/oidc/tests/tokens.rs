//! Tokens of a provider with real keys: what is taken, and everything that is not.

mod provider;

use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rsa::KeySize;
use provider::{Provider, Signer, text};
use serde_json::{Value, json};
use stoker_oidc::{Assumed, ConsoleOptions, Issuer, IssuerOptions, Issuers, Login, Rejected, Role, RoleName};

const NOW: i64 = 1_800_000_000;

fn role(name: &str, user: &str, groups: &[&str]) -> Role {
    Role {
        name: RoleName::parse(name).unwrap(),
        user: user.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        subjects: Vec::new(),
        claims: Vec::new(),
        is_read_only: false,
        prefixes: Vec::new(),
        duration_max_s: 3_600,
    }
}

fn options(provider: &Provider) -> IssuerOptions {
    IssuerOptions {
        name: "corp".to_owned(),
        issuer: provider.issuer.clone(),
        audiences: vec!["stoker".to_owned()],
        groups_claim: "groups".to_owned(),
        skew_s: 60,
        stale_max: Duration::from_secs(7_200),
        ca_file: None,
        roles: vec![
            role("acme/trainer", "alice", &["ml"]),
            role("acme/self", "{preferred_username}", &["ml"]),
        ],
        console: None,
    }
}

async fn assume(issuers: &Issuers, role: &str, token: &str) -> Result<Assumed, Rejected> {
    issuers.assume(&RoleName::parse(role).unwrap(), token, NOW).await
}

async fn at(now_s: i64, issuers: &Issuers, token: &str) -> Result<Assumed, Rejected> {
    issuers.assume(&RoleName::parse("acme/trainer").unwrap(), token, now_s).await
}

fn kind(answer: &Result<Assumed, Rejected>) -> &'static str {
    match answer {
        Ok(_) => "fine",
        Err(Rejected::Invalid(_)) => "invalid",
        Err(Rejected::Expired(_)) => "expired",
        Err(Rejected::Claim(_)) => "claim",
        Err(Rejected::Denied(_)) => "denied",
        Err(Rejected::Unreachable(_)) => "unreachable",
    }
}

#[tokio::test]
async fn tokens_of_all_three_kinds_are_taken_and_none_that_was_changed() {
    let provider = Provider::start();
    let signers = [("r", Signer::rsa(KeySize::Rsa2048)), ("p", Signer::p256()), ("e", Signer::ed25519())];
    provider.lists(signers.iter().map(|(kid, signer)| signer.jwk(kid)).collect());
    let issuers = Issuers::new(vec![options(&provider)]);
    let claims = provider.claims("alice", &["ml", "other"], NOW);
    for (kid, signer) in &signers {
        let token = signer.token(kid, &claims);
        let assumed = assume(&issuers, "acme/trainer", &token).await.unwrap();
        assert_eq!(assumed.user.to_string(), "acme/alice");
        assert_eq!((assumed.subject.as_str(), assumed.audience.as_str()), ("alice", "stoker"));
        assert_eq!(assumed.issuer, provider.issuer);

        let pieces: Vec<&str> = token.split('.').collect();
        let other = provider.claims("bob", &["ml", "other"], NOW);
        let swapped = format!("{}.{}.{}", pieces[0], text(other.to_string()), pieces[2]);
        assert_eq!(kind(&assume(&issuers, "acme/trainer", &swapped).await), "invalid");
        // Every letter of the signature counts.
        let start = token.len() - pieces[2].len();
        for at in (start..token.len()).step_by(7) {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(kind(&assume(&issuers, "acme/trainer", &changed).await), "invalid", "{kid} {at}");
        }
        // Another key of the provider is said to have signed, or an algorithm that is not the key's.
        for (other, other_signer) in &signers {
            if other != kid {
                let wrong = signer.token(other, &claims);
                assert_eq!(
                    kind(&assume(&issuers, "acme/trainer", &wrong).await),
                    "invalid",
                    "{kid} as {other}"
                );
                let header = json!({"alg": other_signer.algorithm(), "kid": kid});
                let wrong = signer.token_with(&header, &claims);
                assert_eq!(kind(&assume(&issuers, "acme/trainer", &wrong).await), "invalid");
            }
        }
        // The key of somebody else.
        let stranger = match signer {
            Signer::Rsa(_) => Signer::rsa(KeySize::Rsa2048),
            Signer::P256(_) => Signer::p256(),
            Signer::Ed25519(_) => Signer::ed25519(),
        };
        assert_eq!(kind(&assume(&issuers, "acme/trainer", &stranger.token(kid, &claims)).await), "invalid");
    }
    assert_eq!(provider.fetches(), 1, "nothing of this is a reason to ask again");
}

#[tokio::test]
async fn hostile_tokens_are_refused() {
    let provider = Provider::start();
    let (rsa, foreign) = (Signer::rsa(KeySize::Rsa2048), Signer::ed25519());
    let jwk = rsa.jwk("r");
    provider.lists(vec![jwk.clone()]);
    let issuers = Issuers::new(vec![options(&provider)]);
    let good = provider.claims("alice", &["ml"], NOW);
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        claims
    };
    assert_eq!(kind(&assume(&issuers, "acme/trainer", &rsa.token("r", &good)).await), "fine");

    // The public key as a secret, which some libraries took.
    let hs256 = |key: &[u8]| {
        let signed = format!("{}.{}", text(r#"{"alg":"HS256","kid":"r"}"#), text(good.to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
        format!("{signed}.{}", text(tag.as_ref()))
    };
    let none = |algorithm: &str| {
        let header = json!({"alg": algorithm, "kid": "r"});
        format!("{}.{}.", text(header.to_string()), text(good.to_string()))
    };
    // A key that the token brings itself.
    let own = json!({"alg": "EdDSA", "kid": "r", "jwk": foreign.jwk("r"), "jku": "https://evil.example.com/keys", "x5u": "https://evil.example.com"});
    let nested =
        rsa.token_with(&json!({"alg": "RS256", "kid": "r", "cty": "JWT"}), &json!(rsa.token("r", &good)));
    let huge = rsa.token("r", &with("more", json!("x".repeat(20_000))));
    let deep = (0..200).fold(json!(1), |inside, _| json!([inside]));
    for (what, token, expect) in [
        ("none", none("none"), "invalid"),
        ("None", none("None"), "invalid"),
        ("RS256 without a signature", none("RS256"), "invalid"),
        ("HMAC by the modulus", hs256(jwk["n"].as_str().unwrap().as_bytes()), "invalid"),
        ("HMAC by the set", hs256(jwk.to_string().as_bytes()), "invalid"),
        ("a key of its own", foreign.token_with(&own, &good), "invalid"),
        ("a token within a token", nested, "invalid"),
        ("huge", huge, "invalid"),
        ("deep", rsa.token("r", &with("deep", deep)), "invalid"),
        ("expired", rsa.token("r", &with("exp", json!(NOW - 61))), "expired"),
        ("within the skew", rsa.token("r", &with("exp", json!(NOW - 59))), "fine"),
        ("not yet", rsa.token("r", &with("nbf", json!(NOW + 61))), "claim"),
        ("of the future", rsa.token("r", &with("iat", json!(NOW + 61))), "claim"),
        ("without an end", rsa.token("r", &without("exp")), "invalid"),
        ("wrong audience", rsa.token("r", &with("aud", json!("other"))), "claim"),
        ("wrong audiences", rsa.token("r", &with("aud", json!(["other", "stoker2"]))), "claim"),
        ("without an audience", rsa.token("r", &without("aud")), "claim"),
        ("foreign issuer", rsa.token("r", &with("iss", json!("https://evil.example.com"))), "invalid"),
        (
            "issuer in other letters",
            rsa.token("r", &with("iss", json!(format!("{}/", provider.issuer)))),
            "invalid",
        ),
        ("without an issuer", rsa.token("r", &without("iss")), "invalid"),
        ("nobody", rsa.token("r", &without("sub")), "invalid"),
        ("without the group", rsa.token("r", &with("groups", json!(["mlx", "other"]))), "denied"),
        ("group as an object", rsa.token("r", &with("groups", json!({"ml": true}))), "denied"),
        ("without groups", rsa.token("r", &without("groups")), "denied"),
    ] {
        assert_eq!(kind(&assume(&issuers, "acme/trainer", &token).await), expect, "{what}");
    }
    assert_eq!(kind(&assume(&issuers, "acme/other", &rsa.token("r", &good)).await), "denied");
    assert_eq!(kind(&assume(&issuers, "beta/trainer", &rsa.token("r", &good)).await), "denied");
    // A user by a claim: names that no user has make none.
    let own = |name: Value| rsa.token("r", &with("preferred_username", name));
    assert_eq!(
        assume(&issuers, "acme/self", &own(json!("carol"))).await.unwrap().user.to_string(),
        "acme/carol"
    );
    for name in
        [json!("beta/bob"), json!("../bob"), json!("Bob"), json!(""), json!(7), json!("a b"), Value::Null]
    {
        assert_eq!(kind(&assume(&issuers, "acme/self", &own(name.clone())).await), "denied", "{name}");
    }
    // Keys that are too weak are none.
    let weak = json!({"kty": "RSA", "kid": "w", "n": text([0xff; 128]), "e": "AQAB"});
    let listed = stoker_oidc::KeySet::parse(json!({"keys": [weak, jwk]}).to_string().as_bytes()).unwrap();
    assert_eq!(listed.list().len(), 1);
}

#[tokio::test]
async fn keys_rotate_and_unknown_ones_do_not_make_the_provider_busy() {
    let provider = Provider::start();
    let (old, new) = (Signer::p256(), Signer::ed25519());
    provider.lists(vec![old.jwk("old")]);
    let issuers = Issuers::new(vec![options(&provider)]);
    let claims = provider.claims("alice", &["ml"], NOW);
    // An end that none of the times below gets to.
    let mut claims = claims;
    claims["exp"] = json!(NOW + 100_000);
    let mut now = NOW;
    let of = |signer: &Signer, kid: &str| signer.token(kid, &claims);
    assert_eq!(kind(&at(now, &issuers, &of(&old, "old")).await), "fine");
    for number in 0..50 {
        let token = of(&new, &format!("made up {number}"));
        assert_eq!(kind(&at(now, &issuers, &token).await), "invalid");
    }
    assert_eq!(provider.fetches(), 1, "the last try is less than half a minute ago");
    // A new key is found as soon as somebody shows it, and the old one ends when it is not listed any more.
    provider.lists(vec![new.jwk("new")]);
    now += 31;
    assert_eq!(kind(&at(now, &issuers, &of(&new, "new")).await), "fine");
    assert_eq!(kind(&at(now, &issuers, &of(&old, "old")).await), "invalid");
    assert_eq!(provider.fetches(), 2);
    // A provider that does not answer: known keys go on, for as long as was said.
    provider.said.lock().unwrap().is_down = true;
    now += 4_000;
    assert_eq!(kind(&at(now, &issuers, &of(&new, "new")).await), "fine");
    now += 4_000;
    let answer = at(now, &issuers, &of(&new, "new")).await;
    assert_eq!(kind(&answer), "unreachable");
    assert!(answer.unwrap_err().to_string().contains("500"));
    provider.said.lock().unwrap().is_down = false;
    now += 31;
    assert_eq!(kind(&at(now, &issuers, &of(&new, "new")).await), "fine");
}

#[tokio::test]
async fn a_login_needs_its_own_nonce_and_verifier() {
    let provider = Provider::start();
    let signer = Signer::ed25519();
    provider.lists(vec![signer.jwk("e")]);
    let mut options = options(&provider);
    options.console = Some(ConsoleOptions {
        client_id: "console".to_owned(),
        client_secret: None,
        scopes: vec!["profile".to_owned()],
        operators: vec!["platform".to_owned()],
        viewers: vec!["ml*".to_owned()],
        url: None,
    });
    let issuer = std::sync::Arc::new(Issuer::new(options));
    let login = Login::of(&issuer).unwrap();
    let (one, other) =
        (login.start("https://c/back").await.unwrap(), login.start("https://c/back").await.unwrap());
    assert_ne!(one.state, other.state);
    let parameter = |url: &str, name: &str| {
        let (_, query) = url.split_once('?').unwrap();
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(other, _)| *other == name).unwrap().1.to_owned()
    };
    assert_eq!(parameter(&one.url, "code_challenge_method"), "S256");
    assert_eq!(parameter(&one.url, "redirect_uri"), "https%3A%2F%2Fc%2Fback");
    assert_eq!(parameter(&one.url, "scope"), "openid%20profile");
    let token = |groups: &[&str], nonce: &str, audience: &str| {
        let mut claims = provider.claims("alice", groups, NOW);
        claims["aud"] = json!(audience);
        claims["nonce"] = json!(nonce);
        provider.said.lock().unwrap().id_token = signer.token("e", &claims);
    };
    let nonce = parameter(&one.url, "nonce");
    for (groups, expect) in
        [(&["platform", "ml-a"][..], Some(true)), (&["ml-a"], Some(false)), (&["x"], None)]
    {
        token(groups, &nonce, "console");
        let claims = login.finish(&one, "code", NOW).await.unwrap();
        assert_eq!(login.is_operator(&claims), expect);
    }
    // What was sent with the code proves who began the login.
    let (_, body) = provider.said.lock().unwrap().asked.last().unwrap().clone();
    let verifier = body.split('&').find_map(|pair| pair.strip_prefix("code_verifier=")).unwrap().to_owned();
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, verifier.as_bytes());
    assert_eq!(text(hash.as_ref()), parameter(&one.url, "code_challenge"));
    assert!(login.finish(&other, "code", NOW).await.unwrap_err().to_string().contains("nonce"));
    token(&["platform"], &nonce, "stoker");
    assert!(
        matches!(login.finish(&one, "code", NOW).await, Err(Rejected::Claim(_))),
        "a token for something else"
    );
    assert!(login.finish(&one, "", NOW).await.is_err());
}
