//! The shipped file is the defaults; mistakes are found where they are.

use std::path::Path;

use super::reference::{EXAMPLES, SHIPPED, sections as shipped};
use super::*;

/// The names that the code knows in a section: it tells them to those who use a wrong one.
fn known(section: &str) -> Vec<String> {
    let fault = Config::parse(&format!("{section}\nno_such_setting = 1")).unwrap_err();
    let Failure::Failed { hint: Some(hint), .. } = failure(&fault, Path::new("f"), "") else { panic!() };
    let names = hint.strip_prefix("known here: ").unwrap_or_else(|| panic!("{section}: {hint}"));
    names.split(", ").map(String::from).collect()
}

#[test]
fn the_shipped_file_is_the_defaults() {
    assert_eq!(Config::parse(SHIPPED).unwrap(), Config::default());
    let mut all = String::new();
    for (section, settings) in shipped().into_iter().filter(|(section, _)| !EXAMPLES.contains(section)) {
        for setting in &settings {
            let config = Config::parse(&format!("[{section}]\n{setting}"))
                .unwrap_or_else(|f| panic!("{setting}: {f:?}"));
            assert_eq!(plain(config), plain(Config::default()), "[{section}] {setting}");
        }
        all += &format!("[{section}]\n{}\n", settings.join("\n"));
    }
    assert_eq!(plain(Config::parse(&all).unwrap()), plain(Config::default()));
}

/// Without the spots in the file, and with an empty path as none: what the settings mean.
fn plain(mut config: Config) -> Config {
    config.catalog.kind =
        (config.catalog.kind() == CatalogKind::Postgres).then(|| Spanned::new(0..0, CatalogKind::Postgres));
    let Config { s3, tls, .. } = &mut config;
    for path in [&mut s3.tls_cert, &mut s3.tls_key, &mut tls.cert, &mut tls.key] {
        *path = set(path.as_ref()).map(|path| Spanned::new(0..0, path.clone()));
    }
    config
}

#[test]
fn the_shipped_file_has_every_setting() {
    let mut sections = known("");
    let all = shipped();
    for (section, settings) in all.clone() {
        let header = match section {
            "drive" => "[[drive]]\npath = \"p\"".into(),
            "slo.target" => "[[slo.target]]".into(),
            "oidc" => "[[oidc]]".into(),
            "oidc.role" => "[[oidc]]\n[[oidc.role]]".into(),
            "oidc.console" => "[[oidc]]\n[oidc.console]".into(),
            _ => format!("[{section}]"),
        };
        let mut names: Vec<&str> = settings.iter().map(|line| line.split_once(" = ").unwrap().0).collect();
        // Sections below it are named by their own headers.
        let below = |(other, _): &(&'static str, _)| other.strip_prefix(section)?.strip_prefix('.');
        names.extend(all.iter().filter_map(below));
        let mut known = known(&header);
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known, "[{section}]");
        sections.retain(|other| other != section);
    }
    assert_eq!(sections, Vec::<String>::new(), "sections that the shipped file lacks");
}

/// The first line of the words for a mistake, and the advice.
fn words(text: &str) -> (String, String) {
    match Config::parse(text).map_err(|fault| failure(&fault, Path::new("s.toml"), text)) {
        Err(Failure::Failed { cause, hint }) => (cause, hint.unwrap_or_default()),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn mistakes_are_found_where_they_are() {
    let check = |text: &str, place: &str, cause: &str, hint: &str| {
        let (got, advice) = words(text);
        assert!(got.starts_with(&format!("s.toml:{place}: ")) && got.contains(cause), "{text}: {got}");
        assert!(advice.contains(hint), "{text}: {advice}");
    };
    let shipped = "deploy/stoker.toml";
    // Unknown names.
    check("[node]\ncoers = 1", "2:1", "unknown setting `coers`; did you mean `cores`?", "dir, cores, memory");
    check("[s3]\nregion = \"x\"\n  listn = []", "3:3", "did you mean `listen`?", "tls_cert");
    check("[volume-defaults]\n", "1:2", "did you mean `volume_defaults`?", "catalog");
    check("colour = 1", "1:1", "unknown setting `colour`", "known here: node, drive");
    check(
        "[[drive]]\npath = \"a\"\n[[drive]]\npath = \"b\"\nsiez = 1",
        "5:1",
        "did you mean `size`?",
        "path, size",
    );
    check(
        "[volume_defaults]\nclass = \"on\"",
        "2:9",
        "unknown value `on`; did you mean `one`?",
        "one, two, three",
    );
    check("[log]\nlevel = \"warning\"", "2:9", "unknown value `warning`; did you mean `warn`?", "error");
    check("[catalog]\nkind = \"sqlite\"", "2:8", "unknown value `sqlite`", "embedded, postgres");
    check("[volume_defaults]\ndrain = \"every 0\"", "2:9", "unknown value `every 0`", "every N");
    // Wrong types.
    check("[node]\ncores = \"two\"", "2:9", "invalid type: string \"two\"", shipped);
    check("[node]\ncores = 1.5", "2:9", "invalid type: floating point", shipped);
    check("[s3]\nlisten = \"127.0.0.1:9000\"", "2:10", "expected a sequence", shipped);
    check("drive = 3", "1:9", "expected a sequence", shipped);
    check("[lake]\nanonymous = \"yes\"", "2:13", "expected a boolean", shipped);
    check("[lake]\npath_style = \"yes\"", "2:14", "expected a boolean", shipped);
    // Impossible values.
    check("[node]\ncores = 0", "2:9", "expected a nonzero", shipped);
    check("[node]\ncores = -1", "2:9", "invalid value", shipped);
    check("[node]\nmemory = \"8XB\"", "2:10", "`XB` is no unit", shipped);
    check("[[drive]]\npath = \"p\"\nsize = -5", "3:8", "expected a size", shipped);
    check("[s3]\nlisten = [\"127.0.0.1:9000\", \"nowhere\"]", "2:29", "invalid socket address", shipped);
    check("[admin]\nlisten = \"127.0.0.1:99999\"", "2:10", "invalid socket address", shipped);
    check("[s3]\ntls_cert = \"c.pem\"", "2:12", "both `tls_cert` and `tls_key`", shipped);
    check("[s3]\ntls_key = \"k.pem\"\ntls_cert = \"\"", "2:11", "both `tls_cert` and `tls_key`", shipped);
    check("[catalog]\nkind = \"postgres\"", "2:8", "needs a `url`", shipped);
    check("[volume_defaults]\ndrain_lag_max_s = 0", "2:19", "expected a nonzero", shipped);
    check("[peers]\nweight = 1001", "2:10", "a weight is 1 to 1000", shipped);
    check("[[drive]]\npath = \"p\"\ndwpd = -1", "3:8", "expected a number from 0 on", shipped);
    check("[lake]\nprice_read_gb = inf", "2:17", "expected a number from 0 on", shipped);
    check("[events]\nwebhooks = [\"example.com\"]", "2:12", "begins with http:// or https://", shipped);
    check("[telemetry]\nexporters = [\"ftp://a\"]", "2:13", "begins with http:// or https://", shipped);
    check("[telemetry.traces]\nsample = 1.5", "2:10", "expected a number from 0 to 1", shipped);
    check("[telemetry.traces]\nendpoint = \"a:4318\"", "2:12", "begins with http:// or https://", shipped);
    check("[telemetry.traces]\nsampel = 1.0", "2:1", "did you mean `sample`?", "endpoint, sample");
    check("[events]\nkafka = { brokers = [\"a\"] }", "2:21", "is not a broker", shipped);
    check("[events]\nkafka = { topic = \"a b\" }", "2:19", "is not a topic", shipped);
    check("[events]\nkafka = { topics = \"a\" }", "2:11", "did you mean `topic`?", "brokers, topic");
    // Providers.
    let oidc = |more: &str| format!("[[oidc]]\nname = \"corp\"\nissuer = \"https://a\"\n{more}");
    let role = |more: &str| oidc(&format!("audiences = [\"s\"]\n[[oidc.role]]\nrole = \"acme/all\"\n{more}"));
    assert!(Config::parse(&role("user = \"alice\"\ngroups = [\"ml\"]")).is_ok());
    check("[[oidc]]\nname = \"x\"\nissuer = \"https://a\"", "2:8", "cannot name a provider", shipped);
    check("[[oidc]]\nname = \"corp\"\nissuer = \"http://a\"", "3:10", "not safe", shipped);
    check("[[oidc]]\nname = \"corp\"\nissuer = \"https://a?b\"", "3:10", "has a query", shipped);
    check(&oidc("clock_skew_s = 601"), "2:8", "`clock_skew_s` is at most", shipped);
    check(&oidc("audience = [\"x\"]"), "4:1", "did you mean `audiences`?", "issuer");
    check(&oidc(&oidc("")), "5:8", "have this name", shipped);
    check(&oidc("[oidc.console]\nclient_id = \"c\""), "2:8", "lets nobody in", shipped);
    check(&role("user = \"alice\""), "6:8", "for everybody", shipped);
    check(&role("user = \"Alice\"\nsubjects = [\"*\"]"), "6:8", "cannot name a user", shipped);
    check(&role("user = \"alice\"\nsubjects = [\"*\"]\nduration_max_s = 1"), "6:8", "900 to 43200", shipped);
    check(
        &role("user = \"alice\"\nsubjects = [\"*\"]").replace("acme/all", "all"),
        "6:8",
        "TENANT/ROLE",
        shipped,
    );
    check(
        &role("user = \"alice\"\nsubjects = [\"*\"]").replace("[\"s\"]", "[]"),
        "2:8",
        "need `audiences`",
        shipped,
    );
    // Not TOML, and twice the same.
    check("[node\n", "1:6", "", shipped);
    check("[node]\ncores = 1\ncores = 2", "3:1", "duplicate key", shipped);
    check("[[drive]]\nsize = \"1GiB\"", "1:1", "missing field `path`", shipped);
}

#[test]
fn settings_are_taken() {
    let text = "[node]\ncores = 4\nmemory = \"2GiB\"\n[[drive]]\npath = \"/d\"\nsize = \"5GB\"\n[lake]\npath_style = true\n\
                [volume_defaults]\ndrain = \"every 7\"\nquota = \"1TiB\"\n[s3]\ntls_cert = \"c\"\ntls_key = \"k\"\nthreads = 3";
    let config = Config::parse(text).unwrap();
    assert_eq!((config.node.cores.get(), config.node.memory), (4, Auto::Set(Size(2 << 30))));
    let none = Amount::default();
    let size = Auto::Set(Size(5_000_000_000));
    assert_eq!(config.drive, [Drive { path: "/d".into(), size, dwpd: none, endurance_tb: none }]);
    assert_eq!(config.lake.path_style.get(), Some(true));
    let policy = config.volume_defaults.policy();
    assert_eq!(
        (policy.drain, policy.quota_bytes, policy.drain_quiet_s),
        (DrainPolicy::Every(7), 1 << 40, 10)
    );
    assert_eq!(config.s3.tls(), Some(("c".into(), "k".into())));
    assert_eq!(config.s3.threads.get().map(NonZeroUsize::get), Some(3));
}
