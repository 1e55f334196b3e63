//! Events to a topic of Kafka: the key is what an event is about, so that all events about the same thing are in one partition, in
//! their order. Every replica that is in sync has an event before the next one is sent.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use rskafka::BackoffConfig;
use rskafka::chrono::DateTime;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use stoker_store::BoxFuture;
use tokio::sync::Mutex;

use super::delivery::{Delivery, Outcome, Receiver, Sort};
use super::{Event, KafkaPlan};
use crate::clock;

/// Longest time for one event, with all that has to be asked before.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Tries inside of it, which the client makes itself. Pauses between events that fail are ours.
const CLIENT_PAUSE_MIN: Duration = Duration::from_millis(100);
const CLIENT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest answer of a broker: it lists all topics of the cluster.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How the node is called in the logs of brokers.
const CLIENT_ID: &str = "stoker";

const SORT: Sort = Sort { name: "kafka", label: "topic", words: "Kafka" };

/// A topic, and where it stood when the node stopped. Brokers come and go; the topic is what counts. One that was never there before
/// is sent what comes behind `seq`.
pub fn open(dir: &Path, plan: &KafkaPlan, seq: u64) -> Delivery {
    let kafka = Kafka { plan: plan.clone(), connected: Mutex::new(None) };
    Delivery::open(dir, SORT, &plan.topic, plan.topic.clone(), Box::new(kafka), seq)
}

struct Kafka {
    plan: KafkaPlan,
    /// None before the first event, and after one that failed.
    connected: Mutex<Option<Connected>>,
}

struct Connected {
    client: Client,
    /// In their order.
    partitions: Vec<i32>,
    /// Those that were written to.
    open: HashMap<i32, PartitionClient>,
}

impl Receiver for Kafka {
    fn send<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let mut connected = self.connected.lock().await;
            // Taken out, so that a try which is given up midway leaves nothing behind that hangs.
            let kept = connected.take();
            match tokio::time::timeout(SEND_MAX, self.produce(kept, event)).await {
                Ok(Ok(kept)) => {
                    *connected = Some(kept);
                    Outcome::Taken
                }
                Ok(Err(outcome)) => outcome,
                Err(_) => Outcome::Failed(format!("no answer within {} s", SEND_MAX.as_secs())),
            }
        })
    }
}

impl Kafka {
    async fn produce(&self, kept: Option<Connected>, event: &Event) -> Result<Connected, Outcome> {
        let mut connected = match kept {
            Some(kept) => kept,
            None => self.connect().await.map_err(Outcome::Failed)?,
        };
        let value = serde_json::to_vec(event).map_err(|error| Outcome::Refused(error.to_string()))?;
        let key = event.about.as_bytes();
        let partition = partition_of(key, &connected.partitions);
        if !connected.open.contains_key(&partition) {
            let handling = UnknownTopicHandling::Error;
            let opened = connected.client.partition_client(&self.plan.topic, partition, handling).await;
            connected.open.insert(partition, opened.map_err(|error| outcome_of(&error))?);
        }
        let record = Record {
            key: Some(key.to_vec()),
            value: Some(value),
            headers: BTreeMap::from([("stoker-event-id".to_owned(), event.id.clone().into_bytes())]),
            timestamp: DateTime::from_timestamp_millis(clock::unix_ms() as i64).unwrap_or_default(),
        };
        let taken = connected.open[&partition].produce(vec![record], Compression::NoCompression).await;
        taken.map(|_| connected).map_err(|error| outcome_of(&error))
    }

    async fn connect(&self) -> Result<Connected, String> {
        let backoff = BackoffConfig {
            init_backoff: CLIENT_PAUSE_MIN,
            max_backoff: CLIENT_PAUSE_MAX,
            deadline: Some(SEND_MAX),
            ..BackoffConfig::default()
        };
        let client = ClientBuilder::new(self.plan.brokers.clone())
            .client_id(CLIENT_ID)
            .max_message_size(ANSWER_BYTES_MAX)
            .backoff_config(backoff)
            .build()
            .await
            .map_err(|error| error.to_string())?;
        let topics = client.list_topics().await.map_err(|error| error.to_string())?;
        let topic = topics.into_iter().find(|topic| topic.name == self.plan.topic);
        let partitions: Vec<i32> =
            topic.map_or_else(Vec::new, |topic| topic.partitions.into_iter().collect());
        if partitions.is_empty() {
            return Err(format!("there is no topic `{}`, and Stoker makes none", self.plan.topic));
        }
        Ok(Connected { client, partitions, open: HashMap::new() })
    }
}

/// Only what is wrong with the event itself is final: a topic or a right may be given later.
fn outcome_of(error: &Error) -> Outcome {
    let is_final = matches!(
        error,
        Error::ServerError {
            protocol_error: ProtocolError::MessageTooLarge | ProtocolError::RecordListTooLarge,
            ..
        }
    );
    let words = error.to_string();
    if is_final { Outcome::Refused(words) } else { Outcome::Failed(words) }
}

/// The partition of a key, as Kafka's own producers choose it: other programs may rely on that.
fn partition_of(key: &[u8], partitions: &[i32]) -> i32 {
    partitions[(murmur2(key) & 0x7fff_ffff) as usize % partitions.len()]
}

/// The hash of Kafka's own producers.
fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        word ^= word >> 24;
        hash = hash.wrapping_mul(M) ^ word.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, byte| tail << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use rskafka::client::error::RequestContext;

    use super::*;

    #[test]
    fn keys_go_where_other_producers_put_them() {
        // From the tests of Kafka's own client (UtilsTest.testMurmur2).
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
        assert_eq!(partition_of(b"21", &[0]), 0);
        assert_eq!(partition_of(b"abc", &[0, 1, 2]), (479_470_107 % 3));
    }

    #[test]
    fn only_what_is_wrong_with_an_event_is_final() {
        let outcome = |protocol_error| {
            outcome_of(&Error::ServerError {
                protocol_error,
                error_message: None,
                request: RequestContext::Partition("events".into(), 0),
                response: None,
                is_virtual: false,
            })
        };
        // A right that was taken away, a topic that somebody removed: a person can fix that, and gets everything then.
        for error in [
            ProtocolError::TopicAuthorizationFailed,
            ProtocolError::ClusterAuthorizationFailed,
            ProtocolError::UnknownTopicOrPartition,
            ProtocolError::NotEnoughReplicas,
        ] {
            assert!(matches!(outcome(error), Outcome::Failed(_)), "{error:?}");
        }
        for error in [ProtocolError::MessageTooLarge, ProtocolError::RecordListTooLarge] {
            assert!(matches!(outcome(error), Outcome::Refused(_)), "{error:?}");
        }
    }
}
