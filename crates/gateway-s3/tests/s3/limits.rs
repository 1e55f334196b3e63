//! Slow clients, too many clients, and the end.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use stoker_gateway_s3::{Gateway, GatewayOptions};

use crate::client::{Client, connect, read_response};
use crate::rig::{Rig, client, pattern, volume};

fn counter(gateway: &Gateway, name: &str) -> f64 {
    gateway.counters().iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
}

fn gateway(options: GatewayOptions) -> (Gateway, Client) {
    let gateway = Rig::get().other_gateway(options);
    let client = Client { address: gateway.addresses()[0], ..client() };
    (gateway, client)
}

/// Waits until the other side closes; the read timeout of the client is the limit.
fn closed(stream: &mut std::net::TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("still open"),
        _ => rest,
    }
}

#[test]
fn a_slow_head_is_not_waited_for() {
    let short = Duration::from_millis(200);
    let (_gateway, client) = gateway(GatewayOptions { header_timeout: short, ..GatewayOptions::default() });
    let mut stream = connect(client.address);
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").unwrap();
    assert!(closed(&mut stream).is_empty());
    // A second request on a connection is no better.
    let mut stream = connect(client.address);
    stream.write_all(&client.sign(client.request("GET", "/"))).unwrap();
    read_response(&mut stream, "GET").expect(200);
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(closed(&mut stream).is_empty());
}

#[test]
fn a_pause_between_requests_is_no_slow_head() {
    let head = Duration::from_millis(50);
    let (_gateway, client) = gateway(GatewayOptions { header_timeout: head, ..GatewayOptions::default() });
    let mut stream = connect(client.address);
    stream.write_all(&client.sign(client.request("GET", "/"))).unwrap();
    read_response(&mut stream, "GET").expect(200);
    // Still open long after the head's time is over; the read gives up, the connection does not.
    stream.set_read_timeout(Some(head * 4)).unwrap();
    let mut byte = [0];
    assert_eq!(stream.read(&mut byte).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn an_idle_connection_is_closed() {
    let short = Duration::from_millis(200);
    let (gateway, client) = gateway(GatewayOptions { idle_timeout: short, ..GatewayOptions::default() });
    let mut stream = connect(client.address);
    closed(&mut stream);
    let mut stream = connect(client.address);
    stream.write_all(&client.sign(client.request("GET", "/"))).unwrap();
    read_response(&mut stream, "GET").expect(200);
    closed(&mut stream);
    assert_eq!(counter(&gateway, "s3_connections_accepted_total"), 2.0);
}

#[test]
fn a_body_that_stops_is_given_up() {
    let short = Duration::from_millis(300);
    let (_gateway, client) = gateway(GatewayOptions { body_timeout: short, ..GatewayOptions::default() });
    let volume = volume();
    let path = format!("/{volume}/stalled");
    for len in [1000, 200_000] {
        let bytes = client.sign(client.request("PUT", &path).body(&pattern(1, len)));
        let mut stream = connect(client.address);
        stream.write_all(&bytes[..bytes.len() - 10]).unwrap();
        read_response(&mut stream, "PUT").refused(400, "RequestTimeout");
    }
    client.get(&path).refused(404, "NoSuchKey");
}

#[test]
fn a_reader_that_stops_is_given_up() {
    let short = Duration::from_millis(300);
    let (gateway, client) = gateway(GatewayOptions { body_timeout: short, ..GatewayOptions::default() });
    let volume = volume();
    let path = format!("/{volume}/unread");
    client.put(&path, &pattern(2, 32 << 20)).expect(200);
    let mut stream = connect(client.address);
    stream.write_all(&client.sign(client.request("GET", &path))).unwrap();
    let mut first = [0; 1000];
    stream.read_exact(&mut first).unwrap();
    while counter(&gateway, "s3_connections") > 0.0 {
        std::thread::yield_now();
    }
    // What was on its way comes, the rest does not.
    assert!(closed(&mut stream).len() < 32 << 20);
}

#[test]
fn connections_are_turned_away_at_the_limit() {
    let (gateway, client) = gateway(GatewayOptions { connections_max: 2, ..GatewayOptions::default() });
    let mut held: Vec<_> = (0..2).map(|_| connect(client.address)).collect();
    for stream in &mut held {
        stream.write_all(&client.sign(client.request("GET", "/"))).unwrap();
        read_response(stream, "GET").expect(200);
    }
    let mut third = connect(client.address);
    let _ = third.write_all(&client.sign(client.request("GET", "/")));
    let answer = read_response(&mut third, "GET");
    assert_eq!((answer.status, answer.element("Code").as_deref()), (503, Some("SlowDown")));
    assert_eq!(counter(&gateway, "s3_connections_rejected_total"), 1.0);
    drop(held);
    while counter(&gateway, "s3_connections") > 0.0 {
        std::thread::yield_now();
    }
    client.get("/").expect(200);
}

#[test]
fn what_is_in_flight_is_finished() {
    let rig = Rig::get();
    let (gateway, client) = gateway(GatewayOptions::default());
    let volume = volume();
    let path = format!("/{volume}/in-flight");
    let body = pattern(8, 2 << 20);
    let bytes = client.sign(client.request("PUT", &path).body(&body));
    let mut stream = connect(client.address);
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    stream.write_all(first).unwrap();
    while counter(&gateway, "s3_requests_in_flight") < 1.0 {
        std::thread::yield_now();
    }
    let idle = connect(client.address);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| rig.runtime.block_on(gateway.stop(Duration::from_secs(20))));
        // Stopped for newcomers before the rest is sent.
        while std::net::TcpStream::connect(client.address).is_ok() {
            std::thread::yield_now();
        }
        stream.write_all(rest).unwrap();
        let answer = read_response(&mut stream, "PUT").expect(200);
        assert_eq!(answer.header("connection"), Some("close"));
        stopping.join().unwrap();
    });
    drop(idle);
    assert!(crate::rig::client().get(&path).expect(200).body == body);
}

#[test]
fn a_stop_without_grace_does_not_wait() {
    let rig = Rig::get();
    let (gateway, client) = gateway(GatewayOptions::default());
    let volume = volume();
    let path = format!("/{volume}/cut");
    let bytes = client.sign(client.request("PUT", &path).body(&pattern(8, 1 << 20)));
    let mut stream = connect(client.address);
    stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
    while counter(&gateway, "s3_requests_in_flight") < 1.0 {
        std::thread::yield_now();
    }
    rig.runtime.block_on(gateway.stop(Duration::ZERO));
    closed(&mut stream);
    crate::rig::client().get(&path).refused(404, "NoSuchKey");
}

#[test]
fn requests_are_counted() {
    let (gateway, client) = gateway(GatewayOptions::default());
    let volume = volume();
    client.put(&format!("/{volume}/a"), &[1; 1000]).expect(200);
    client.get(&format!("/{volume}/a")).expect(200);
    client.get(&format!("/{volume}/b")).refused(404, "NoSuchKey");
    let value = |name: &str, labels: &[(&str, &str)]| {
        let fits = |counter: &&stoker_store::Counter| {
            counter.name == name
                && labels
                    .iter()
                    .all(|(label, value)| counter.labels.iter().any(|(l, v)| l == label && v == value))
        };
        gateway.counters().iter().find(fits).map(|counter| counter.value)
    };
    assert_eq!(value("s3_requests_total", &[("operation", "PutObject"), ("status", "2xx")]), Some(1.0));
    assert_eq!(value("s3_requests_total", &[("operation", "GetObject"), ("status", "4xx")]), Some(1.0));
    assert_eq!(value("s3_received_bytes_total", &[]), Some(1000.0));
    assert!(value("s3_sent_bytes_total", &[]).unwrap() > 1000.0);
    assert_eq!(value("s3_request_seconds_count", &[("operation", "GetObject")]), Some(2.0));
}

#[test]
fn a_connection_ends_where_a_100_was_waited_for_and_none_was_said() {
    let (_gateway, client) = gateway(GatewayOptions::default());
    let path = format!("/{}/empty", volume());
    let mut stream = connect(client.address);
    let empty = client.request("PUT", &path).header("expect", "100-continue");
    stream.write_all(&client.sign(empty)).unwrap();
    // botocore would misread what comes next on this connection.
    assert_eq!(read_response(&mut stream, "PUT").expect(200).header("connection"), Some("close"));
    assert!(closed(&mut stream).is_empty());
    let whole = client.request("PUT", &path).header("expect", "100-continue").body(&pattern(1, 10));
    let mut stream = connect(client.address);
    stream.write_all(&client.sign(whole)).unwrap();
    assert_eq!(read_response(&mut stream, "PUT").expect(200).header("connection"), None);
}
