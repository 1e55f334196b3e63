//! What the nodes on these machines are configured with.

use stoker_doctor::{Certificate, Clock, Database, Direct, Drive, DriveKind, Plan, Standby};

use super::tree::NOW_S;

const DAY_S: u64 = 86_400;

pub fn drive(path: &str) -> Drive {
    Drive { path: path.into(), kind: DriveKind::Files, direct: Ok(Direct::Works) }
}

pub fn certificate(days_from: i64, days_until: i64) -> Certificate {
    let at = |days: i64| NOW_S.saturating_add_signed(days * DAY_S as i64);
    Certificate {
        name: "S3 /etc/stoker/tls.crt".to_owned(),
        validity_s: Ok((at(days_from), at(days_until))),
        renew: "certbot renew && systemctl reload stoker".to_owned(),
    }
}

/// For the healthy machine: everything is known, and everything fits.
pub fn gpu_node() -> Plan {
    Plan {
        dir: Some("/var/lib/stoker".into()),
        process: None,
        drives: (0..8).map(|number| drive(&format!("/mnt/nvme{number}"))).collect(),
        cores: Ok(vec![4, 5, 6, 7, 100, 101, 102, 103]),
        memory_bytes: Ok(32 << 30),
        pool_bytes: Ok(2 << 30),
        descriptors: Ok(20_000),
        addresses: vec![
            "10.20.0.11".parse().unwrap(),
            "10.20.1.11".parse().unwrap(),
            "127.0.0.1".parse().unwrap(),
        ],
        keys: ["credentials", "token", "cluster.keys"]
            .iter()
            .map(|name| format!("/var/lib/stoker/{name}").into())
            .chain(["/etc/stoker/tls.key".into()])
            .collect(),
        data: vec!["/mnt/lake".into(), "/mnt/nvme0/stoker".into()],
        certificates: vec![certificate(-30, 60)],
        database: Some(Ok(Database {
            name: "postgresql://db.example/stoker".to_owned(),
            standby_names: Some("ANY 1 (a, b)".to_owned()),
            synchronous_commit: Some("on".to_owned()),
            fsync: Some("on".to_owned()),
            full_page_writes: Some("on".to_owned()),
            standbys: Some(vec![standby("a", "quorum"), standby("b", "quorum")]),
        })),
        uring: Ok(Ok(())),
        clock: Ok(Clock { is_synchronised: true }),
        offsets_ms: vec![("PostgreSQL".to_owned(), 12)],
    }
}

pub fn standby(name: &str, sync_state: &str) -> Standby {
    Standby { name: name.to_owned(), state: "streaming".to_owned(), sync_state: sync_state.to_owned() }
}

/// `stoker up` on the laptop.
pub fn laptop() -> Plan {
    Plan {
        dir: Some("/srv/stoker-data".into()),
        drives: vec![drive("/srv/stoker-data/ring")],
        cores: Ok(vec![13, 15]),
        memory_bytes: Ok(8 << 30),
        pool_bytes: Ok(1 << 30),
        descriptors: Ok(8_000),
        addresses: vec!["127.0.0.1".parse().unwrap()],
        keys: vec!["/srv/stoker-data/credentials".into()],
        uring: Ok(Ok(())),
        clock: Ok(Clock { is_synchronised: true }),
        ..Plan::default()
    }
}

/// `stoker serve` in the container.
pub fn container() -> Plan {
    Plan {
        dir: Some("/var/lib/stoker".into()),
        drives: vec![drive("/data")],
        cores: Ok(vec![14, 15]),
        memory_bytes: Ok(8 << 30),
        pool_bytes: Ok(1 << 30),
        descriptors: Ok(8_000),
        uring: Ok(Err(1)),
        clock: Ok(Clock { is_synchronised: true }),
        ..Plan::default()
    }
}
