//! The statements that a store sends, with the name of its schema.

use crate::setup;

/// One row of facts. Nothing in it needs more rights than locks do. A standby refuses it.
const EXAMINE: &str = "SELECT current_setting('server_version') AS server, \
    current_setting('server_version_num')::int AS number, \
    current_setting('server_encoding') AS encoding, current_setting('fsync') AS fsync, \
    current_setting('full_page_writes') AS full_page_writes, \
    current_setting('synchronous_standby_names') AS standbys, clock_timestamp() AS now, \
    f.since, f.grants_from, f.epoch, \
    current_setting('max_connections')::bigint - (SELECT count(*) FROM pg_stat_activity) AS sessions_left, \
    (SELECT count(*) FROM pg_stat_activity s WHERE s.application_name = 'leasehold-listen') AS listeners, \
    (SELECT extract(epoch FROM max(clock_timestamp() - s.xact_start))::float8 FROM pg_stat_activity s \
        WHERE s.datname = current_database()) AS longest_transaction, \
    pg_notification_queue_usage() AS queue, \
    CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN \
        (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')) END AS synchronised, \
    (SELECT extract(epoch FROM max(clock_timestamp() - p.prepared))::float8 FROM pg_prepared_xacts p \
        WHERE p.database = current_database()) AS longest_prepared, \
    (SELECT string_agg(s.slot_name, ', ') FROM pg_replication_slots s WHERE s.xmin IS NOT NULL AND NOT s.active) \
        AS slots, \
    (SELECT t.n_tup_hot_upd::float8 / t.n_tup_upd FROM pg_stat_user_tables t \
        WHERE t.relid = 'leasehold.lock'::regclass AND t.n_tup_upd > 1000) AS within_page, \
    (SELECT s.setting::int FROM pg_settings s WHERE s.name = 'statement_timeout') AS statement_ms, \
    (SELECT s.setting::int FROM pg_settings s WHERE s.name = 'lock_timeout') AS lock_ms, \
    (SELECT string_agg(DISTINCT format('%s of %s', s.pid, s.usename), ', ') \
        FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid AND s.datname = current_database() \
        WHERE k.relation = 'leasehold.lock'::regclass AND k.granted \
        AND k.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') \
        AND s.xact_start < clock_timestamp() - interval '5 seconds') AS lockers, \
    ARRAY(SELECT p.prosrc FROM pg_proc p WHERE p.pronamespace = \
        (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'leasehold.lock'::regclass)) AS functions FROM leasehold.epoch_1() f";

/// The statements, with the name of the schema.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) read: String,
    pub(crate) read_all: String,
    pub(crate) lock: String,
    pub(crate) tell: String,
    pub(crate) take: String,
    pub(crate) release: String,
    pub(crate) renew: String,
    pub(crate) write: String,
    pub(crate) note_loss: String,
    pub(crate) adopt: String,
    pub(crate) forget: String,
    pub(crate) list: String,
    pub(crate) log_append: String,
    pub(crate) log_trim: String,
    pub(crate) log_read: String,
    pub(crate) examine: String,
}

impl Statements {
    pub(crate) fn of(schema: &str) -> Self {
        let sql = |text| setup::in_schema(text, schema);
        Self {
            note_loss: sql("SELECT leasehold.note_loss_1()::text"),
            read: sql("SELECT * FROM leasehold.read_1($1)"),
            read_all: sql(
                "SELECT s.* FROM unnest($1) WITH ORDINALITY AS n(name, at), leasehold.read_1(n.name) s ORDER BY n.at",
            ),
            tell: sql("SELECT * FROM leasehold.tell_1($1, $2, $3, $4)"),
            lock: sql("SELECT leasehold.lock_1($1)::text"),
            take: sql("SELECT * FROM leasehold.take_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"),
            release: sql("SELECT * FROM leasehold.release_1($1,$2,$3,$4,$5)"),
            renew: sql("SELECT * FROM leasehold.renew_1($1,$2,$3,$4,$5,$6,$7,$8)"),
            write: sql(
                "SELECT leasehold.write_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22)",
            ),
            adopt: sql("SELECT leasehold.adopt_1($1)::text"),
            forget: sql("SELECT leasehold.forget_1($1, $2)::text"),
            list: sql(
                "SELECT n.name, s.* FROM leasehold.names_1($1) n(name), leasehold.read_1(n.name) s ORDER BY n.name",
            ),
            log_append: sql("SELECT leasehold.log_1($1, $2)::text"),
            log_trim: sql("SELECT leasehold.log_keep_1($1, $2)::text"),
            log_read: sql("SELECT * FROM leasehold.log_last_1($1, $2)"),
            examine: sql(EXAMINE),
        }
    }
}
