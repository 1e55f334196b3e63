use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::watch;

use super::super::delivery::REFUSALS_MAX;
use super::super::delivery::tests::{event, until_sent, value};
use super::*;

fn hook(dir: &Path, url: &str, secret: Option<Secret>) -> Delivery {
    open(dir, url, 0, secret, Http::new().unwrap(), 0)
}

/// A receiver: answers with these statuses, one for each request, and tells what it got.
fn receiver(listener: TcpListener, statuses: Vec<u16>) -> mpsc::Receiver<(String, String)> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut piece = [0; 4096];
            let (head, body) = loop {
                let got = stream.read(&mut piece).unwrap();
                bytes.extend_from_slice(&piece[..got]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.unwrap().parse::<usize>().unwrap() {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            let _ = tell.send((head, body));
        }
    });
    told
}

#[tokio::test]
async fn a_receiver_that_is_not_there_gets_everything_once_it_is() {
    let dir = tempfile::tempdir().unwrap();
    // A port that nobody listens on, until later.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}/hook");
    let webhook = Arc::new(hook(dir.path(), &url, None));
    webhook.fill([event(1), event(2)]);
    let (_changes, changed) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(webhook.clone().send_all(changed, stopped));
    while value(&webhook, "webhook_failures_total") < 1.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(value(&webhook, "webhook_up"), 0.0);
    assert_eq!(value(&webhook, "webhook_waiting"), 2.0);
    // It fails once more while it is there, and then takes them in their order.
    let told = receiver(TcpListener::bind(address).unwrap(), vec![503, 200, 200]);
    while webhook.sent_seq() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send_replace(true);
    task.await.unwrap();
    let ids: Vec<String> =
        told.iter().map(|(_, body)| serde_json::from_str::<Event>(&body).unwrap().id).collect();
    assert_eq!(ids, ["n-1", "n-1", "n-2"]);
    assert_eq!(value(&webhook, "webhook_up"), 1.0);
    assert_eq!(value(&webhook, "webhook_waiting"), 0.0);
    // After a restart it goes on behind them.
    assert_eq!(hook(dir.path(), &url, None).sent_seq(), 2);
    assert_eq!(hook(dir.path(), "http://127.0.0.1:1/", None).sent_seq(), 0);
}

#[tokio::test]
async fn what_is_sent_is_signed() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
    let told = receiver(listener, vec![204]);
    std::fs::write(dir.path().join("secret"), "\n open sesame \n").unwrap();
    let secret = read_secret(&dir.path().join("secret")).unwrap();
    let webhook = Arc::new(hook(dir.path(), &url, Some(secret)));
    webhook.fill([event(7)]);
    until_sent(&webhook, 7).await;
    let (head, body) = told.recv().unwrap();
    assert!(head.starts_with("POST /hook?a=b HTTP/1.1"), "{head}");
    assert!(head.contains("stoker-event-id: n-7"), "{head}");
    let signature = head.lines().find_map(|line| line.strip_prefix("stoker-signature: ")).unwrap();
    let (time, sum) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"open sesame");
    let expect = hmac::sign(&key, format!("{time}.{body}").as_bytes());
    assert_eq!(sum, hex(expect.as_ref()));
    std::fs::write(dir.path().join("empty"), " \n").unwrap();
    assert!(read_secret(&dir.path().join("empty")).is_err());
    assert!(read_secret(&dir.path().join("missing")).is_err());
}

#[tokio::test]
async fn a_receiver_that_refuses_one_event_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let told = receiver(listener, [vec![400; REFUSALS_MAX as usize], vec![200]].concat());
    let webhook = Arc::new(hook(dir.path(), &url, None));
    webhook.fill([event(1), event(2)]);
    until_sent(&webhook, 2).await;
    assert_eq!(told.iter().count(), REFUSALS_MAX as usize + 1);
    assert_eq!(value(&webhook, "webhook_given_up_total"), 1.0);
    assert_eq!(value(&webhook, "webhook_sent_total"), 1.0);
}

#[tokio::test]
async fn a_receiver_that_refuses_everything_is_not_called_well() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let _told = receiver(listener, vec![400; REFUSALS_MAX as usize]);
    let webhook = Arc::new(hook(dir.path(), &url, None));
    webhook.fill([event(1)]);
    until_sent(&webhook, 1).await;
    assert_eq!(value(&webhook, "webhook_up"), 0.0);
    assert_eq!(value(&webhook, "webhook_sent_total"), 0.0);
}

#[tokio::test]
async fn what_a_receiver_says_beside_its_status_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // It takes the event, and begins an answer that is long and never ends.
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 X\r\ncontent-length: 1000000\r\n\r\n");
            let _ = stream.write_all(&[b'a'; 100_000]);
            let _ = tell.send(());
            held.push(stream);
        }
    });
    let webhook = Arc::new(hook(dir.path(), &url, None));
    webhook.fill([event(1)]);
    until_sent(&webhook, 1).await;
    assert_eq!(value(&webhook, "webhook_failures_total"), 0.0);
    assert_eq!(told.try_iter().count(), 1, "it is sent once");
}

#[test]
fn two_receivers_of_one_host_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["https://hooks.example.com/services/A", "https://hooks.example.com/services/B"];
    assert!(is_label_same(one, two) && !is_label_same(one, "https://other.example.com/"));
    let label = |url, twins| {
        let webhook = open(dir.path(), url, twins, None, Http::new().unwrap(), 0);
        webhook.counters()[0].labels[0].1.clone()
    };
    assert_eq!(label(one, 0), "https://hooks.example.com");
    assert_eq!(label(two, 1), "https://hooks.example.com#2");
}

#[test]
fn statuses() {
    for status in [200, 202, 204] {
        assert_eq!(outcome_of(status), Outcome::Taken);
    }
    // A word that expired, a path that is wrong: a person can fix that, and gets everything then.
    for status in [301, 401, 403, 404, 408, 410, 429, 500, 503] {
        assert!(matches!(outcome_of(status), Outcome::Failed(_)), "{status}");
    }
    for status in [400, 413, 422] {
        assert!(matches!(outcome_of(status), Outcome::Refused(_)), "{status}");
    }
}

#[test]
fn labels_have_no_secrets() {
    for (url, label) in [
        ("https://hooks.example.com/services/T0/B0/secret", "https://hooks.example.com"),
        ("http://10.0.0.1:8080?token=secret", "http://10.0.0.1:8080"),
        ("http://user:secret@host/", "host"),
        ("nonsense", "nonsense"),
    ] {
        assert_eq!(without_secrets(url), label);
    }
}
