//! Logins to the console by a provider, over real sockets: the browser is this test, the provider signs with real keys.

#[path = "../../oidc/tests/provider/mod.rs"]
mod provider;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use provider::{Provider, Signer};
use serde_json::{Value, json};
use stoker_access::Guard;
use stoker_admin::{Admin, AdminOptions, Rate};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_oidc::{ConsoleOptions, Issuer, IssuerOptions, Login};
use stoker_store::Store;
use tempfile::TempDir;

#[expect(clippy::disallowed_methods, reason = "the console looks at the real clock")]
fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.all(name).into_iter().next()
    }

    fn all(&self, name: &str) -> Vec<&str> {
        let is_it = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        self.head.lines().filter(is_it).map(|line| line[name.len() + 1..].trim()).collect()
    }

    /// The cookies that it sets, as a browser sends them back.
    fn cookies(&self) -> String {
        self.all("set-cookie")
            .iter()
            .map(|cookie| cookie.split(';').next().unwrap())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn get(address: SocketAddr, path: &str, cookies: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookies}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head[9..12].parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

fn parameter(url: &str, name: &str) -> String {
    let (_, query) = url.split_once('?').unwrap();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(other, _)| *other == name).unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_a_provider_open_the_console() {
    let (provider, signer) = (Provider::start(), Signer::p256());
    provider.lists(vec![signer.jwk("p")]);
    let issuer = Issuer::new(IssuerOptions {
        name: "corp".to_owned(),
        issuer: provider.issuer.clone(),
        audiences: Vec::new(),
        groups_claim: "groups".to_owned(),
        skew_s: 60,
        stale_max: Duration::from_secs(86_400),
        ca_file: None,
        roles: Vec::new(),
        console: Some(ConsoleOptions {
            client_id: "console".to_owned(),
            client_secret: Some("secret of the console".to_owned()),
            scopes: vec!["profile".to_owned()],
            operators: vec!["platform".to_owned()],
            viewers: vec!["ml".to_owned()],
            url: None,
        }),
    });
    let dir = TempDir::new().unwrap();
    let mut options = NodeOptions::new(dir.path().join("node"));
    options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
    let node = Node::open(options).await.unwrap();
    let guard = Guard::new(Arc::clone(&node) as Arc<dyn Store>);
    let logins = vec![Login::of(&Arc::new(issuer)).unwrap()];
    // The walk makes more wrong attempts than anybody may in a moment.
    let guess_rate = Rate { per_s: 1e3, burst: 1e3 };
    let options = AdminOptions {
        logins,
        guess_rate,
        ..AdminOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), "secret")
    };
    let admin = Admin::start(&guard, options).await.unwrap();
    let at = admin.address();
    let walk = move || {
        assert_eq!(get(at, "/login/providers", "").body, r#"{"providers":["corp"]}"#);
        assert_eq!(get(at, "/login/begin?provider=other", "").status, 404);
        let begin = || {
            let answer = get(at, "/login/begin?provider=corp", "");
            assert_eq!(answer.status, 303, "{}", answer.body);
            let url = answer.header("location").unwrap().to_owned();
            assert!(url.starts_with(&format!("{}/login?", provider.issuer)));
            assert!(parameter(&url, "redirect_uri").ends_with("%2Flogin%2Fcallback"));
            let is_lax = |cookie: &&str| cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax");
            assert!(answer.all("set-cookie").iter().all(is_lax));
            (answer.cookies(), parameter(&url, "state"), parameter(&url, "nonce"))
        };
        let says = |groups: &[&str], nonce: &str, change: &dyn Fn(&mut Value)| {
            let mut claims = provider.claims("alice", groups, now_s());
            claims["aud"] = json!("console");
            claims["nonce"] = json!(nonce);
            change(&mut claims);
            provider.said.lock().unwrap().id_token = signer.token("p", &claims);
        };
        let back =
            |state: &str, cookies: &str| get(at, &format!("/login/callback?code=abc&state={state}"), cookies);
        let same = |_: &mut Value| {};

        for (groups, role) in [(&["platform", "ml"][..], "operator"), (&["ml"], "view")] {
            let (cookies, state, nonce) = begin();
            says(groups, &nonce, &same);
            let answer = back(&state, &cookies);
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert!(answer.body.contains("url=/"));
            assert!(answer.all("set-cookie")[0].contains("SameSite=Strict"));
            let session = answer.cookies();
            let who: Value = serde_json::from_str(&get(at, "/api/v1/session", &session).body).unwrap();
            assert_eq!((&who["role"], &who["by"]), (&json!(role), &json!("session")));
            assert_eq!(get(at, "/", &session).status, 200);
            // A code comes back once.
            assert_eq!(back(&state, &cookies).status, 403);
        }
        // The secret goes to the provider, and the verifier with the code.
        let (_, body) = provider.said.lock().unwrap().asked.last().unwrap().clone();
        assert!(
            body.contains("code=abc") && body.contains("code_verifier=") && !body.contains("secret"),
            "{body}"
        );

        let (cookies, state, nonce) = begin();
        says(&["other"], &nonce, &same);
        let answer = back(&state, &cookies);
        assert_eq!(answer.status, 403);
        assert!(answer.body.contains("alice is in no group"), "{}", answer.body);
        assert!(answer.all("set-cookie").is_empty());
        // A login that somebody else began, one that nobody began, and one that the provider refused.
        let (cookies, state, nonce) = begin();
        says(&["platform"], &nonce, &same);
        assert_eq!(back(&state, "").status, 403);
        assert_eq!(back(&state, &begin().0).status, 403);
        assert_eq!(back("guess", &cookies).status, 403);
        assert_eq!(
            get(at, &format!("/login/callback?error=access_denied%3Cb%3E&state={state}"), &cookies).status,
            403
        );
        // Tokens of another login, for another client, and over.
        let expired = |claims: &mut Value| claims["exp"] = json!(now_s() - 100);
        let foreign = |claims: &mut Value| claims["aud"] = json!("stoker");
        let other = |claims: &mut Value| claims["nonce"] = json!("other");
        let changes: [&dyn Fn(&mut Value); 3] = [&expired, &foreign, &other];
        for change in changes {
            let (cookies, state, nonce) = begin();
            says(&["platform"], &nonce, change);
            let answer = back(&state, &cookies);
            assert_eq!(answer.status, 403);
            assert!(answer.all("set-cookie").is_empty());
        }
    };
    tokio::task::spawn_blocking(walk).await.unwrap();
    admin.stop(Duration::from_secs(1)).await;
    node.stop().await;
}
