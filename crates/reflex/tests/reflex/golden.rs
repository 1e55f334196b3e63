//! The bytes of work orders, in every form. `STOKER_BLESS=1` writes them.

use stoker_reflex::config::Format;
use stoker_reflex::events::Evidence;
use stoker_reflex::order::{self, Credentials, OrderKind, OrderStatus, Severity, WorkOrder};
use stoker_reflex::{Location, PartId, Time};

const NOW: Time = Time(1_767_225_600_000);

fn sample(status: OrderStatus) -> WorkOrder {
    let part = PartId::drive("3f2a", "/dev/nvme3n1");
    let opened = Time(NOW.0 - 330_000);
    WorkOrder {
        key: WorkOrder::key(OrderKind::Repair, "c1", &part.to_string(), 7, opened),
        kind: OrderKind::Repair,
        status,
        severity: Severity::Error,
        cluster: "c1".into(),
        incident: 7,
        location: Location {
            cell: "rack-12".into(),
            tor: "leaf-12a".into(),
            power: "pdu-a".into(),
            node: "3f2a".into(),
            node_name: "gpu-07".into(),
            place: "/dev/nvme3n1".into(),
            detail: "E1.S 7.68 TB, serial \"S6\u{fc}\", slot 3".into(),
        },
        part: Some(part),
        title: "drive /dev/nvme3n1 of node gpu-07: drive_write_p99 of drive/3f2a:/dev/nvme3n1: 4.10 ms, allowed 1.20 ms, 30 periods in a row".into(),
        task: "Replace the drive, once an update says that it may be pulled.".into(),
        reason: "it has been bad for many periods, and others can do without it".into(),
        opened,
        at: NOW,
        evidence: vec![
            Evidence {
                what: "drive_write_p99".into(),
                part: "drive/3f2a:/dev/nvme3n1".into(),
                found: "4.10 ms".into(),
                limit: "1.20 ms".into(),
                since: opened,
                periods: 30,
            },
            Evidence {
                what: "smart".into(),
                part: "drive/3f2a:/dev/nvme3n1".into(),
                found: "media".into(),
                limit: "no warning".into(),
                since: opened,
                periods: 30,
            },
        ],
    }
}

fn check(name: &str, format: Format, url: &str, remote: Option<&str>) {
    let mut text = String::new();
    for status in [OrderStatus::Opened, OrderStatus::Updated, OrderStatus::Closed] {
        let credentials = Credentials { token: Some("TOKEN"), secret: Some(b"secret") };
        let remote = remote.filter(|_| status != OrderStatus::Opened);
        let request = order::request(format, url, &sample(status), credentials, remote, NOW);
        text += &format!("{} {}\n", request.method, request.url);
        for (header, value) in &request.headers {
            text += &format!("{header}: {value}\n");
        }
        let body = String::from_utf8(request.body).unwrap();
        serde_json::from_str::<serde_json::Value>(&body).expect("a body is JSON");
        text += &format!("\n{body}\n\n");
    }
    let path = format!("{}/tests/golden/{name}.http", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("STOKER_BLESS").is_some() {
        std::fs::write(&path, &text).expect("golden file is writable");
    }
    let expected = std::fs::read_to_string(&path).expect("golden file exists; STOKER_BLESS=1 writes it");
    assert_eq!(text, expected, "{name}: STOKER_BLESS=1 writes it anew");
}

#[test]
fn alertmanager() {
    check("alertmanager", Format::Alertmanager, "http://alerts.example.com:9093/", None);
}

#[test]
fn pagerduty() {
    check("pagerduty", Format::Pagerduty, "https://events.pagerduty.com/v2/enqueue", None);
}

#[test]
fn servicenow() {
    let row = Some("9d385017c611228701d22104cc95c371");
    check("servicenow", Format::Servicenow, "https://example.service-now.com", row);
}

#[test]
fn webhook() {
    check("webhook", Format::Webhook, "https://hooks.example.com/stoker", None);
}

/// A row that is not known is asked for by its correlation id.
#[test]
fn servicenow_rows_are_found_again() {
    let order = sample(OrderStatus::Updated);
    let credentials = Credentials { token: Some("TOKEN"), secret: None };
    let request = order::servicenow_find("https://example.service-now.com/", &order, credentials);
    let url = format!(
        "https://example.service-now.com/api/now/table/incident?sysparm_query=correlation_id%3D{}&sysparm_limit=1&sysparm_fields=sys_id",
        order.key
    );
    assert_eq!((request.method, request.url), ("GET", url));
    let patch = order::request(Format::Servicenow, "https://x", &order, credentials, Some("../x"), NOW);
    assert_eq!((patch.method, patch.url.as_str()), ("POST", "https://x/api/now/table/incident"));
}

/// Compared with `printf '1767225600.{}' | openssl dgst -sha256 -hmac secret`.
#[test]
fn signatures_are_what_others_compute() {
    let signature = order::signature(b"secret", NOW, b"{}");
    assert_eq!(signature, "t=1767225600,v1=fa7eaa06bf97d7815f3f456e97cde70c9e50cb005f01660c8d10b10c21964887");
    assert_ne!(order::signature(b"other", NOW, b"{}"), signature);
}

#[test]
fn keys_name_one_incident() {
    let key = |of: &str, incident, opened| WorkOrder::key(OrderKind::Repair, "c", of, incident, Time(opened));
    assert_eq!(key("drive/a", 1, 1), key("drive/a", 1, 1));
    for other in [key("drive/b", 1, 1), key("drive/a", 2, 1), key("drive/a", 1, 2)] {
        assert_ne!(key("drive/a", 1, 1), other);
    }
}
