//! Against a real server, which plays the four kinds of targets.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use aws_lc_rs::hmac;
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use stoker_reflex::order::{OrderKind, Severity};
use stoker_reflex::{Location, Outbox};
use tokio::net::TcpListener;

use super::*;

const NOW: Time = Time(1_767_225_600_123);
const ROW: &str = r#"{"result":{"sys_id":"9d385017c611228701d22104cc95c371","number":"INC0010001"}}"#;
const ROW_ID: &str = "9d385017c611228701d22104cc95c371";

/// What a server got.
#[derive(Clone, Debug)]
struct Got {
    method: String,
    path: String,
    headers: HeaderMap,
    body: String,
}

/// A server that gives these answers, one for each request, and then always 200 with nothing.
struct Server {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Server {
    async fn start(answers: Vec<(u16, String)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let (seen, answers) = (got.clone(), Arc::new(Mutex::new(VecDeque::from(answers))));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answers) = (seen.clone(), answers.clone());
                let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let (seen, answers) = (seen.clone(), answers.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        seen.lock().unwrap().push(Got {
                            method: head.method.to_string(),
                            path: head.uri.to_string(),
                            headers: head.headers,
                            body: String::from_utf8(body.to_vec()).unwrap(),
                        });
                        let (status, text) =
                            answers.lock().unwrap().pop_front().unwrap_or((200, String::new()));
                        let mut answer = hyper::Response::builder().status(status);
                        if (300..400).contains(&status) {
                            answer = answer.header("location", text.clone());
                        }
                        Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(text))).unwrap())
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Server { url, got }
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    fn lines(&self) -> Vec<String> {
        self.got().iter().map(|got| format!("{} {}", got.method, got.path)).collect()
    }
}

fn answers(of: &[(u16, &str)]) -> Vec<(u16, String)> {
    of.iter().map(|(status, text)| (*status, (*text).to_owned())).collect()
}

fn order(status: OrderStatus) -> WorkOrder {
    WorkOrder {
        key: "stoker-00ff".into(),
        kind: OrderKind::Repair,
        status,
        severity: Severity::Error,
        cluster: "c1".into(),
        incident: 7,
        part: None,
        location: Location::default(),
        title: "drive of gpu-07".into(),
        task: "Replace it.".into(),
        reason: "it is bad".into(),
        opened: Time(NOW.0 - 60_000),
        at: NOW,
        evidence: Vec::new(),
    }
}

fn notice(status: OrderStatus, tries: u32, remote: Option<&str>) -> Notice {
    Notice {
        id: 1,
        target: "t".into(),
        order: order(status),
        tries,
        due: NOW,
        why: None,
        parked: false,
        remote: remote.map(str::to_owned),
    }
}

fn secret_file(dir: &Path, name: &str, text: &str, mode: u32) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

fn slo(format: &str, url: &str, dir: &Path) -> Slo {
    let token = secret_file(dir, "token", " T0K3N\n", 0o600);
    let secret = secret_file(dir, "secret", "open sesame\n", 0o640);
    Slo::parse(&format!(
        "[[slo.target]]\nname = \"t\"\nformat = \"{format}\"\nurl = \"{url}\"\ntoken_file = \"{token}\"\nsecret_file = \"{secret}\""
    ))
    .unwrap()
}

fn sender(format: &str, url: &str, dir: &Path) -> Sender {
    Sender::new(&slo(format, url, dir), Http::new().unwrap()).unwrap()
}

fn taken(remote: Option<&str>) -> Answer {
    Answer::Taken { remote: remote.map(str::to_owned) }
}

fn later(answer: &Answer) -> &str {
    match answer {
        Answer::Later { why } => why,
        other => panic!("{other:?}"),
    }
}

/// Recomputes what a receiver would.
fn check_signature(got: &Got) {
    let signature = got.headers["x-stoker-signature"].to_str().unwrap();
    let (seconds, sum) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    assert_eq!(seconds, (NOW.0 / 1_000).to_string());
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"open sesame");
    let bytes: Vec<u8> =
        (0..sum.len()).step_by(2).map(|at| u8::from_str_radix(&sum[at..at + 2], 16).unwrap()).collect();
    hmac::verify(&key, format!("{seconds}.{}", got.body).as_bytes(), &bytes).unwrap();
}

#[tokio::test]
async fn every_form_is_taken_after_it_failed_once() {
    for (format, path, ok, remote) in [
        ("alertmanager", "/api/v2/alerts", (200, ""), None),
        ("pagerduty", "/", (202, r#"{"status":"success"}"#), None),
        ("servicenow", "/api/now/table/incident", (201, ROW), Some(ROW_ID)),
        ("webhook", "/", (204, ""), None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut list = vec![(500, "no room\n for T0K3N")];
        if format == "servicenow" {
            list.push((200, r#"{"result":[]}"#));
        }
        list.push(ok);
        let server = Server::start(answers(&list)).await;
        let sender = sender(format, &server.url, dir.path());
        // The outbox decides about the second try, as it does in a node.
        let mut outbox = Outbox::default();
        outbox.push("t", &order(OrderStatus::Opened), NOW);
        let first = outbox.due(NOW).remove(0);
        outbox.begin(first.id);
        let failed = sender.send(&first, NOW).await;
        assert_eq!(later(&failed), "status 500: no room for ***", "{format}");
        outbox.answered(first.id, NOW, failed);
        let again = outbox.due(Time(NOW.0 + 10_000)).remove(0);
        let done = sender.send(&again, NOW).await;
        assert_eq!(done, taken(remote), "{format}");
        outbox.answered(again.id, NOW, done);
        assert!(outbox.waiting().is_empty());
        let posts: Vec<Got> = server.got().into_iter().filter(|got| got.method == "POST").collect();
        assert_eq!(posts.len(), 2, "{format}");
        for got in &posts {
            assert_eq!(got.path, path);
            check_signature(got);
            serde_json::from_str::<serde_json::Value>(&got.body).unwrap();
            let bearer = got.headers.get("authorization").map(|value| value.to_str().unwrap());
            assert_eq!(bearer, (format != "pagerduty").then_some("Bearer T0K3N"), "{format}");
            assert_eq!(got.body.contains("\"routing_key\":\"T0K3N\""), format == "pagerduty");
        }
        assert_eq!(posts[0].headers["idempotency-key"], posts[1].headers["idempotency-key"]);
    }
}

#[tokio::test]
async fn what_is_refused_for_good_is_parked() {
    for format in ["alertmanager", "pagerduty", "servicenow", "webhook"] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(answers(&[(400, "bad \x1b[2J field")])).await;
        let mut outbox = Outbox::default();
        outbox.push("t", &order(OrderStatus::Opened), NOW);
        let answer = sender(format, &server.url, dir.path()).send(&outbox.due(NOW)[0], NOW).await;
        assert_eq!(answer, Answer::Never { why: "status 400: bad [2J field".into() });
        outbox.answered(1, NOW, answer);
        assert!(outbox.waiting()[0].parked);
    }
}

#[tokio::test]
async fn nobody_there_is_later() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for format in ["alertmanager", "pagerduty", "servicenow", "webhook"] {
        let answer = sender(format, &url, dir.path()).send(&notice(OrderStatus::Opened, 0, None), NOW).await;
        assert!(later(&answer).contains("refused"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_a_long_answer_is_read_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = Server::start(Vec::new()).await;
    let long = "x".repeat(ANSWER_BYTES_MAX + 1);
    let server = Server::start(answers(&[(302, &elsewhere.url), (200, &long)])).await;
    let sender = sender("webhook", &server.url, dir.path());
    let answer = sender.send(&notice(OrderStatus::Opened, 0, None), NOW).await;
    assert!(matches!(&answer, Answer::Never { why } if why.starts_with("status 302")), "{answer:?}");
    assert!(elsewhere.got().is_empty());
    let answer = sender.send(&notice(OrderStatus::Opened, 0, None), NOW).await;
    assert_eq!(answer, taken(None));
}

/// What ServiceNow answers, to which notice, and what follows.
#[tokio::test]
async fn a_row_is_made_once() {
    use OrderStatus::{Closed, Opened, Updated};
    const NONE: &str = r#"{"result":[]}"#;
    const FOUND: &str = r#"{"result":[{"sys_id":"9d385017c611228701d22104cc95c371"}]}"#;
    const ASLEEP: &str = "<html>This instance is hibernating</html>";
    const FIND: &str = "GET /api/now/table/incident?sysparm_query=correlation_id%3Dstoker-00ff&sysparm_limit=1&sysparm_fields=sys_id";
    const POST: &str = "POST /api/now/table/incident";
    const PATCH: &str = "PATCH /api/now/table/incident/9d385017c611228701d22104cc95c371";
    type Case<'a> = (OrderStatus, u32, Option<&'a str>, &'a [(u16, &'a str)], &'a [&'a str], Option<Answer>);
    let cases: [Case<'_>; 13] = [
        (Opened, 0, None, &[(201, ROW)], &[POST], Some(taken(Some(ROW_ID)))),
        // Taken by whom? The next try looks.
        (Opened, 0, None, &[(200, ASLEEP)], &[POST], None),
        (Opened, 1, None, &[(200, FOUND)], &[FIND], Some(taken(Some(ROW_ID)))),
        (Opened, 1, None, &[(200, NONE), (201, ROW)], &[FIND, POST], Some(taken(Some(ROW_ID)))),
        (Opened, 1, None, &[(200, ASLEEP)], &[FIND], None),
        (Opened, 1, None, &[(503, "")], &[FIND], None),
        (Updated, 0, Some(ROW_ID), &[(200, ROW)], &[PATCH], Some(taken(Some(ROW_ID)))),
        (Updated, 0, Some(ROW_ID), &[(200, ASLEEP)], &[PATCH], None),
        (Updated, 0, None, &[(200, FOUND), (200, ROW)], &[FIND, PATCH], Some(taken(Some(ROW_ID)))),
        (Updated, 0, None, &[(200, NONE), (201, ROW)], &[FIND, POST], Some(taken(Some(ROW_ID)))),
        (Closed, 0, Some(ROW_ID), &[(404, ""), (200, NONE)], &[PATCH, FIND], Some(taken(None))),
        (Closed, 3, None, &[(200, FOUND), (200, ROW)], &[FIND, PATCH], Some(taken(Some(ROW_ID)))),
        (Closed, 0, None, &[(200, NONE)], &[FIND], Some(taken(None))),
    ];
    for (at, (status, tries, remote, list, lines, expect)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(answers(list)).await;
        let sender = sender("servicenow", &server.url, dir.path());
        let answer = sender.send(&notice(status, tries, remote), NOW).await;
        match expect {
            Some(expect) => assert_eq!(answer, expect, "case {at}"),
            None => assert!(!later(&answer).is_empty(), "case {at}"),
        }
        assert_eq!(server.lines(), lines, "case {at}");
        for got in server.got().iter().filter(|got| got.method == "POST") {
            assert!(got.body.contains("short_description"), "case {at}: {}", got.body);
        }
    }
}

#[tokio::test]
async fn files_are_read_again_and_targets_can_go() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new()).await;
    let sender = sender("alertmanager", &format!("{}/base/", server.url), dir.path());
    let first = notice(OrderStatus::Opened, 0, None);
    assert_eq!(sender.send(&first, NOW).await, taken(None));
    secret_file(dir.path(), "token", "second", 0o600);
    assert_eq!(sender.send(&first, NOW).await, taken(None));
    let tokens: Vec<String> =
        server.got().iter().map(|got| got.headers["authorization"].to_str().unwrap().to_owned()).collect();
    assert_eq!(tokens, ["Bearer T0K3N", "Bearer second"]);
    assert_eq!(server.got()[0].path, "/base/api/v2/alerts");
    secret_file(dir.path(), "token", "two\nlines", 0o600);
    let answer = sender.send(&first, NOW).await;
    assert!(!later(&answer).contains("lines"), "{answer:?}");
    std::fs::remove_file(dir.path().join("token")).unwrap();
    assert!(later(&sender.send(&first, NOW).await).contains("is not there"));
    assert_eq!(server.got().len(), 2);
    let gone = Notice { target: "other".into(), ..first };
    assert!(matches!(sender.send(&gone, NOW).await, Answer::Never { .. }));
}

#[test]
fn files_that_cannot_be_used_are_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let slo = slo("webhook", "http://127.0.0.1:1", dir.path());
    let refused = || match Sender::new(&slo, Http::new().unwrap()).err().unwrap() {
        Failure::Failed { cause, hint } => format!("{cause} | {}", hint.unwrap_or_default()),
        Failure::Over(_) | Failure::PipeClosed => panic!("another failure"),
    };
    secret_file(dir.path(), "token", "x", 0o644);
    assert!(refused().contains("(mode 0644) | chmod 600"), "{}", refused());
    secret_file(dir.path(), "token", " \n", 0o600);
    assert!(refused().contains("is empty"), "{}", refused());
    std::fs::remove_file(dir.path().join("token")).unwrap();
    assert!(refused().contains("| check the path"), "{}", refused());
}
