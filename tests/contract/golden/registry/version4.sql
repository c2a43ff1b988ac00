BEGIN TRANSACTION;
CREATE TABLE commits (
	writer VARCHAR(32) NOT NULL, 
	table_name VARCHAR(64) NOT NULL, 
	id BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	rows BIGINT NOT NULL, 
	version BIGINT, 
	moves BLOB NOT NULL, 
	PRIMARY KEY (writer, table_name, id)
);
INSERT INTO "commits" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','telemetry',1,'confirmed',10,1,X'');
INSERT INTO "commits" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','telemetry',2,'confirmed',10,2,X'');
INSERT INTO "commits" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','ledger',1,'confirmed',1,1,X'');
INSERT INTO "commits" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','telemetry',3,'prepared',15,NULL,X'92CEA174B0A3C4759296A764656661756C74A3677731D9206565656565656565656565656565656565656565656565656565656565656565AC706C616E742F312F74656D701E2796A764656661756C74A3677732D9206666666666666666666666666666666666666666666666666666666666666666A470756D700004');
CREATE TABLE gateways (
	tenant VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	first_seen BIGINT NOT NULL, 
	last_seen BIGINT NOT NULL, 
	connected BOOLEAN NOT NULL, 
	remote VARCHAR(255) NOT NULL, 
	generation BIGINT NOT NULL, 
	landed BIGINT NOT NULL, 
	writer VARCHAR(32), 
	PRIMARY KEY (tenant, name), 
	FOREIGN KEY(tenant) REFERENCES tenants (name)
);
INSERT INTO "gateways" VALUES('default','gw1',1795250665237000,1795250665237000,1,'10.0.0.1:40000',2,20,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
INSERT INTO "gateways" VALUES('default','gw2',1795250665237000,1795250665237000,1,'10.0.0.2:40000',1,0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
CREATE TABLE ledgered (
	tenant VARCHAR(255) NOT NULL, 
	gateway VARCHAR(255) NOT NULL, 
	epoch TEXT NOT NULL, 
	address TEXT NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	PRIMARY KEY (tenant, gateway, epoch, address, first, last)
);
INSERT INTO "ledgered" VALUES('default','gw1','eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee','plant/1/temp',10,14);
CREATE TABLE lineages (
	tenant VARCHAR(255) NOT NULL, 
	gateway VARCHAR(255) NOT NULL, 
	epoch TEXT NOT NULL, 
	openings BLOB NOT NULL, 
	ends BLOB, 
	PRIMARY KEY (tenant, gateway, epoch)
);
INSERT INTO "lineages" VALUES('default','gw1','eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee',X'92A36F6E65A374776F',NULL);
CREATE TABLE marks (
	tenant VARCHAR(255) NOT NULL, 
	gateway VARCHAR(255) NOT NULL, 
	epoch TEXT NOT NULL, 
	address TEXT NOT NULL, 
	mark BIGINT NOT NULL, 
	spans BLOB NOT NULL, 
	checksum BIGINT, 
	PRIMARY KEY (tenant, gateway, epoch, address)
);
INSERT INTO "marks" VALUES('default','gw1','eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee','plant/1/temp',29,X'9292000992141D',2066387659);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	registry_id VARCHAR(32) NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(4,'be671e61c96c3810bfb2be0fabb733ec');
CREATE TABLE tenants (
	name VARCHAR(255) NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "tenants" VALUES('default',1795250665237000);
CREATE TABLE writers (
	id VARCHAR(32) NOT NULL, 
	starts BIGINT NOT NULL, 
	lake VARCHAR(64), 
	PRIMARY KEY (id)
);
INSERT INTO "writers" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',1,'memory');
COMMIT;
