//! Many who are slow, and one who is not: whoever behaves gets its work done while the others are still there.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stoker_gateway_s3::{Gateway, GatewayOptions};

use crate::client::{Client, connect, read_response};
use crate::rig::{Rig, client, pattern, volume};

/// As many as somebody would bring, or as few as show it.
fn crowd(full: usize, few: usize) -> usize {
    if std::env::var_os("STOKER_FULL").is_some() { full } else { few }
}

fn counter(gateway: &Gateway, name: &str) -> f64 {
    gateway.counters().iter().filter(|counter| counter.name == name).map(|counter| counter.value).sum()
}

fn gateway(options: GatewayOptions) -> (Gateway, Client) {
    let gateway = Rig::get().other_gateway(options);
    let client = Client { address: gateway.addresses()[0], ..client() };
    (gateway, client)
}

/// A connection from another address of this machine.
fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn wait_for(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

const FORM: &str = "content-type: multipart/form-data; boundary=XyZ\r\ncontent-length: 100000\r\n\r\n--XyZ\r\n\
    Content-Disposition: form-data; name=\"key\"\r\n\r\nuser/";

#[test]
fn slow_forms_keep_nobody_out() {
    let count = crowd(4096, 64);
    let patient = Duration::from_secs(3_600);
    let options = GatewayOptions {
        connections_max: count,
        header_timeout: patient,
        body_timeout: patient,
        ..GatewayOptions::default()
    };
    let (gateway, client) = gateway(options);
    let volume = volume();
    let form = format!("POST /{volume} HTTP/1.1\r\nhost: {}\r\n{FORM}", client.address);
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        let mut stream = connect(client.address);
        stream.write_all(form.as_bytes()).unwrap();
        slow.push(stream);
    }
    wait_for(|| counter(&gateway, "s3_requests_in_flight") == count as f64);
    // Of the same address, again and again.
    let path = format!("/{volume}/a");
    for seed in 0..4 {
        let body = pattern(seed, 100_000);
        client.put(&path, &body).expect(200);
        assert!(client.get(&path).expect(200).body == body);
    }
    // And of another one.
    let mut other = connect_from(2, client.address);
    other.write_all(&client.sign(client.request("GET", &path))).unwrap();
    read_response(&mut other, "GET").expect(200);
    // Nobody was turned away, and most of them are still there.
    assert_eq!(counter(&gateway, "s3_connections_rejected_total"), 0.0);
    wait_for(|| counter(&gateway, "s3_connections_shed_total") >= 1.0);
    assert!(counter(&gateway, "s3_requests_in_flight") >= (count - 16) as f64);
    wait_for(|| counter(&gateway, "s3_connections") <= count as f64);
}

/// One address with credentials has all connections, until another one comes.
#[test]
fn one_address_leaves_room_for_others() {
    let (gateway, client) = gateway(GatewayOptions { connections_max: 8, ..GatewayOptions::default() });
    let ask = |stream: &mut TcpStream| {
        stream.write_all(&client.sign(client.request("GET", "/"))).unwrap();
        read_response(stream, "GET")
    };
    let mut held: Vec<TcpStream> = (0..8).map(|_| connect(client.address)).collect();
    held.iter_mut().for_each(|stream| drop(ask(stream).expect(200)));
    let mut others: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        let mut stream = connect_from(2, client.address);
        ask(&mut stream).expect(200);
        others.push(stream);
    }
    // Both have the same now, and keep it.
    assert_eq!(ask(&mut connect_from(2, client.address)).status, 503);
    assert_eq!(ask(&mut connect(client.address)).status, 503);
    wait_for(|| counter(&gateway, "s3_connections_shed_total") >= 4.0);
    assert_eq!(counter(&gateway, "s3_connections_shed_total"), 4.0);
    others.iter_mut().for_each(|stream| drop(ask(stream).expect(200)));
    let cut = held.iter_mut().filter_map(|stream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).ok()
    });
    assert_eq!(cut.count(), 4, "half of the first ones are closed");
}

#[test]
fn the_fields_of_a_form_have_a_deadline() {
    let (_gateway, client) = gateway(GatewayOptions {
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_secs(3_600),
        ..GatewayOptions::default()
    });
    let form = format!("POST /{} HTTP/1.1\r\nhost: {}\r\n{FORM}", volume(), client.address);
    let mut stream = connect(client.address);
    stream.write_all(form.as_bytes()).unwrap();
    read_response(&mut stream, "POST").refused(400, "RequestTimeout");
}

/// Each sends enough to be given the memory of a chunk, and then no more. There are many more of them than there is memory.
#[test]
fn slow_writers_do_not_hold_what_a_fast_one_needs() {
    let count = crowd(1_000, 300);
    let patient = Duration::from_secs(3_600);
    let (gateway, client) = gateway(GatewayOptions { body_timeout: patient, ..GatewayOptions::default() });
    let volume = volume();
    let (fast, body) = (format!("/{volume}/fast"), pattern(3, 48 << 20));
    let mut slow: Vec<TcpStream> = Vec::new();
    for at in 0..count {
        let request = client.request("PUT", &format!("/{volume}/slow-{at}"));
        let head = client.sign(request.header("content-length", &(8 << 20).to_string()));
        let mut stream = connect(client.address);
        stream.write_all(&head).unwrap();
        stream.write_all(&body[..64 << 10]).unwrap();
        slow.push(stream);
    }
    wait_for(|| counter(&gateway, "s3_requests_in_flight") == count as f64);
    client.put(&fast, &body).expect(200);
    assert!(client.get(&fast).expect(200).body == body);
    // They are all there, and none of them has written anything that can be seen.
    wait_for(|| counter(&gateway, "s3_requests_in_flight") == count as f64);
    let listed = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert_eq!(listed.element("KeyCount").as_deref(), Some("1"));
}
