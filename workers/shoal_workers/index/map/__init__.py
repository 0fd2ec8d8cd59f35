"""The two axes that a build writes for the map that earlier releases showed. Imports the contract and `files`."""
