"""``agent --observe``: proves what other tools applied, without a server and without writing anything."""
