//! What the loop decided, what people tell it, and drives that are cordoned.

use super::*;

/// What a leader wrote down of a drive, a port and a switch in trouble, with a budget and two notices.
fn head(drive: &str, at_ms: u64) -> Value {
    let finding = json!({
        "what": "drive_read_p99", "part": drive, "found": "p99 9.1 ms", "limit": "1.5 ms", "since": 5, "periods": 30,
    });
    let part = |part: &str, state: &str, evidence: Value| json!({ "part": part, "state": state, "opened": 7, "reason": "slow", "evidence": evidence, "has_order": true });
    let notice = |target: &str, why: Value, parked: bool| json!({ "target": target, "title": "replace it", "tries": 3, "why": why, "parked": parked });
    json!({
        "leader": "a 1 2", "node": "n1", "beat": 9, "at_ms": at_ms, "gates": [], "probes": [], "of_another_release": 1,
        "weights": [{ "node": "ab", "drive": "/d", "percent": 10, "takes_chunks": false }],
        "shown": {
            "acts": true,
            "parts": [
                part(drive, "repair", json!([finding])),
                part("port/ab:eth0", "down", json!([])),
                part("switch/left", "degraded", json!([])),
            ],
            "parts_more": 0,
            "budgets": [{ "indicator": "drive_errors", "status": {
                "good": 90, "bad": 10, "left": -0.5, "burn_5m": 15.0, "burn_1h": null, "burn_6h": null, "burning": "fast",
            } }],
            "notices": [notice("desk", json!("400"), true), notice("alerts", Value::Null, false)],
        },
    })
}

#[tokio::test]
async fn what_the_loop_decided_is_shown_whoever_leads() {
    let rig = Rig::new(options()).await;
    let document = openapi::document();
    let fits = |value: &Value| {
        let schema = json!({ "$ref": "#/components/schemas/Slo" });
        assert_eq!(misfits(&document, &schema, value, "slo"), Vec::<String>::new());
    };
    let node = rig.member.node();
    let told = rig.get("/api/v1/slo").await.json();
    assert_eq!(
        (&told["state"], &told["leader"], &told["parts"]),
        (&json!("nobody"), &Value::Null, &json!([]))
    );
    assert!(told["words"].as_str().unwrap().contains("nobody leads yet"), "{told}");
    fits(&told);
    for strange in ["{", "[1]", r#"{"shown":{"parts":[{"part":7}]}}"#, "\u{1b}\u{0}"] {
        let seq = node.note("reflex").await.unwrap().map(|note| note.seq);
        node.write_note("reflex", seq, strange.as_bytes(), None).await.unwrap().unwrap();
        let said = rig.get("/api/v1/slo").await;
        assert_eq!((said.status, &said.json()["state"]), (200, &json!("not_understood")), "{}", said.body);
        fits(&said.json());
    }
    let id = rig.get("/api/v1/status").await.json()["node"].as_str().unwrap().to_owned();
    let drive = format!("drive/{id}:/d0");
    for (at_ms, state) in [(1, "silent"), (crate::clock::unix_ms(), "leads")] {
        let seq = node.note("reflex").await.unwrap().map(|note| note.seq);
        let text = head(&drive, at_ms).to_string();
        node.write_note("reflex", seq, text.as_bytes(), None).await.unwrap().unwrap();
        let told = rig.get("/api/v1/slo").await.json();
        fits(&told);
        assert_eq!(
            (&told["state"], &told["leader"], &told["acts"]),
            (&json!(state), &json!("n1"), &json!(true))
        );
        let part = &told["parts"][0];
        assert_eq!((&part["name"], &part["piece"]), (&json!("alone"), &json!("/d0")), "{part}");
        assert_eq!((&part["state"], &part["can_be_repaired"]), (&json!("repair"), &json!(true)));
        assert_eq!(part["evidence"][0]["found"], "p99 9.1 ms");
        assert_eq!(
            told["parts"][1]["can_be_repaired"], false,
            "nobody waits for the word that a port is well"
        );
        assert_eq!((&told["parts"][2]["node"], &told["parts"][2]["kind"]), (&Value::Null, &json!("switch")));
        assert_eq!(
            (&told["budgets"][0]["left_percent"], &told["budgets"][0]["burning"]),
            (&json!(-50.0), &json!("fast"))
        );
        assert_eq!(
            (&told["notices"][0]["refused"], &told["notices"][1]["why"]),
            (&json!(true), &Value::Null)
        );
        assert_eq!(told["weights"][0]["percent"], 10);
    }
    rig.end().await;
}

#[tokio::test]
async fn people_tell_the_loop_what_they_did() {
    let rig = Rig::new(options()).await;
    let node = rig.member.node();
    let (repaired, retry) = ("/api/v1/slo/repaired", "/api/v1/slo/retry");
    let body = |part: &str| json!({ "part": part }).to_string();
    rig.refused("POST", repaired, OPERATOR, &body("drive/ab:/d0"), 404, "nothing is known to be wrong").await;
    let text = head("drive/ab:/d0", 1).to_string();
    node.write_note("reflex", None, text.as_bytes(), None).await.unwrap().unwrap();
    for (given, status, words) in [
        (body("drive/ab:/d1"), 404, "nothing is known to be wrong with `drive/ab:/d1`"),
        (body("port/ab:eth0"), 409, "is down: nothing follows"),
        (body("drive"), 400, "drive/NODE:PATH"),
        (body("drive/a\nb"), 400, "drive/NODE:PATH"),
        (body(&format!("drive/{}", "a".repeat(300))), 400, "drive/NODE:PATH"),
        ("{}".to_owned(), 400, "part"),
    ] {
        rig.refused("POST", repaired, OPERATOR, &given, status, words).await;
    }
    rig.refused("POST", repaired, VIEW, &body("drive/ab:/d0"), 403, "is for operators").await;
    assert!(node.note("reflex-wishes").await.unwrap().is_none(), "what was refused is not told");
    assert_eq!(rig.post(repaired, &body("drive/ab:/d0")).await.json(), json!({ "done": true }));
    assert_eq!(rig.post(retry, "").await.json(), json!({ "done": true }));
    let wishes = node.note("reflex-wishes").await.unwrap().unwrap().head;
    assert_eq!(String::from_utf8(wishes).unwrap(), "{\"repaired\":\"drive/ab:/d0\"}\n\"retry\"\n");
    let mut audit = rig.audit("door=admin").await;
    audit.retain(|entry| entry["action"].as_str().unwrap().starts_with("POST "));
    assert_eq!(audit[1]["detail"], body("drive/ab:/d0"), "{audit:?}");
    assert_eq!(audit[0]["action"], json!(format!("POST {retry}")));
    rig.end().await;
}

#[tokio::test]
async fn a_drive_is_cordoned_and_uncordoned() {
    let rig = Rig::new(options()).await;
    let cordon = "/api/v1/nodes/alone/drives/cordon";
    let only = rig.get("/api/v1/drives").await.json()["drives"][0]["drive"].as_str().unwrap().to_owned();
    let body = |drive: &str, cordoned: bool| json!({ "drive": drive, "cordoned": cordoned }).to_string();
    rig.refused("POST", cordon, OPERATOR, &body(&only, true), 409, "the last drive of this node").await;
    rig.refused("POST", cordon, OPERATOR, &body("no-drive", true), 404, "no-drive").await;
    rig.refused("POST", cordon, OPERATOR, &json!({ "drive": only }).to_string(), 400, "cordoned").await;
    let path = rig.folder.path().join("second");
    std::fs::create_dir(&path).unwrap();
    let added = json!({ "path": path, "size_bytes": 256u64 << 20 }).to_string();
    assert_eq!(rig.post("/api/v1/nodes/alone/drives", &added).await.status, 200);
    for (cordoned, state) in [(true, "cordoned"), (false, "live")] {
        let said = rig.post(cordon, &body(&only, cordoned)).await;
        assert_eq!((said.status, &said.json()["drives"][0]["state"]), (200, &json!(state)), "{}", said.body);
        let all = rig.get("/api/v1/drives").await.json()["drives"].clone();
        let state_of = |one: &Value| (one["drive"] == only.as_str()).then(|| one["state"].clone());
        assert_eq!(all.as_array().unwrap().iter().find_map(state_of), Some(json!(state)), "{all}");
    }
    rig.end().await;
}
